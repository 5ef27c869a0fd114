"""Find the config files and the groups of options in them."""

from pathlib import Path
from typing import Any


def config_folder() -> Path:
    """Return ``conf/``: inside the package when installed, beside it in a checkout."""
    package = Path(__file__).resolve().parent.parent
    inside = package / "conf"
    return inside if inside.is_dir() else package.parent / "conf"


def groups(config: str, own: str | None = None) -> dict[str, list[str]]:
    """Return the groups that a command's config chooses from, each with its options.

    ``own`` is the user's ``--config-dir``.
    """
    from omegaconf import OmegaConf

    defaults: Any = OmegaConf.load(config_folder() / f"{config}.yaml").defaults
    named = {str(key).split()[-1] for entry in defaults if entry != "_self_" for key in entry}
    options: dict[str, list[str]] = {}
    for folder in (config_folder(), *([Path(own)] if own else [])):
        for path in sorted(folder.rglob("*.yaml")):
            group, *rest = path.relative_to(folder).with_suffix("").parts
            if rest and group in named and group != "recipe":  # Hydra chooses recipes itself
                options.setdefault(group, []).append("/".join(rest))
    return options
