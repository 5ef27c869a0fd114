"""Build the objects that a config describes."""

from typing import Any

from rdm_solo.ground.errors import UserError


def instantiate(node: Any, **options: Any) -> Any:
    """Call the node's ``_target_`` through Hydra; raise its errors as a :class:`UserError`."""
    import hydra.utils
    from hydra.errors import InstantiationException

    try:
        return hydra.utils.instantiate(node, **options)
    except InstantiationException as error:
        if isinstance(error.__cause__, UserError):
            raise error.__cause__ from None
        words = str(error).split()
        raise UserError(" ".join(words)) from error
