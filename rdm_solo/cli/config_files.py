"""Find the config files."""

from pathlib import Path


def config_folder() -> Path:
    """Return ``conf/``: inside the package when installed, beside it in a checkout."""
    package = Path(__file__).resolve().parent.parent
    inside = package / "conf"
    return inside if inside.is_dir() else package.parent / "conf"
