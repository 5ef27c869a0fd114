"""The methods, for both versions of solo-learn; solo-learn is imported on first use."""

from typing import Any

from rdm_solo.methods.descriptions import METHODS

__all__ = ["BYOL", "DINO", "SimSiam", "SwAV", "SymSimSiam", "build", "prepare"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from rdm_solo.methods import building

    description = METHODS.get(name.lower())
    return building.method_class(description) if description else getattr(building, name)
