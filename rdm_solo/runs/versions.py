"""The versions that a result depends on."""

import platform
from importlib import metadata

from rdm_solo import __version__


def versions(*packages: str) -> dict[str, str]:
    """Return the versions of Python, of rdm_solo and of these packages."""
    return {
        "python": platform.python_version(),
        "rdm_solo": __version__,
        **{name: metadata.version(name) for name in packages},
    }
