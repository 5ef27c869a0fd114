"""The Rank Differential Mechanism for solo-learn: spectral filters instead of predictors."""

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rdm_solo.filters import SpectralFilter
    from rdm_solo.notebook import Run, Sweep, fit
    from rdm_solo.watch import Watch

__version__ = "0.2.0"
__all__ = ["Run", "SpectralFilter", "Sweep", "Watch", "fit", "register_methods"]


def import_on_first_use(names: Sequence[str] | None, *modules: str) -> Callable[[str], Any]:
    """Return a package's ``__getattr__``, which imports its modules when a name is first used.

    Some of them load torch, which takes seconds. The modules are tried in order. ``names`` are the
    names that the package has; None: every function and class that one of the modules defines.
    """

    def find(name: str) -> Any:
        if names is None or name in names:
            for path in modules:
                value = getattr(import_module(path), name, None)
                if value is not None and (names or getattr(value, "__module__", None) == path):
                    return value
        raise AttributeError(f"{modules[0].rpartition('.')[0]} has no attribute {name!r}")

    return find


__getattr__ = import_on_first_use(
    ["Run", "SpectralFilter", "Sweep", "Watch", "fit"],
    "rdm_solo.filters",
    "rdm_solo.watch",
    "rdm_solo.notebook",
)


def register_methods() -> None:
    """Add ``rdm_simsiam``, ``rdm_byol`` and ``symsimsiam`` to solo-learn's ``METHODS``.

    solo-learn's scripts and YAML files can then use them. This requires its current main.
    """
    from rdm_solo.methods import registration, solo_learn

    solo_learn.register(registration.METHODS)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
