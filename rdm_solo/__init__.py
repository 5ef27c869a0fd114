"""The Rank Differential Mechanism for solo-learn: spectral filters instead of predictors."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rdm_solo.filters import SpectralFilter
    from rdm_solo.notebook import Run, Sweep, fit
    from rdm_solo.watch import Watch

__version__ = "0.1.0"
__all__ = ["Run", "SpectralFilter", "Sweep", "Watch", "fit", "register_methods"]

# Imported when they are first used: they need torch, which takes seconds to load.
_MODULES = {
    "Run": "rdm_solo.notebook",
    "Sweep": "rdm_solo.notebook",
    "fit": "rdm_solo.notebook",
    "SpectralFilter": "rdm_solo.filters",
    "Watch": "rdm_solo.watch",
}


def register_methods() -> None:
    """Add ``rdm_simsiam``, ``rdm_byol`` and ``symsimsiam`` to solo-learn's ``METHODS``.

    Its scripts and YAML files can then use them. This requires solo-learn's current main.
    """
    from rdm_solo.methods import plugin, solo_learn

    solo_learn.register(plugin.METHODS)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
