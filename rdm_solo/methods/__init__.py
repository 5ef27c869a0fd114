"""The methods, on either version of solo-learn.

Everything here needs solo-learn, which takes seconds to import: names are looked up when they are
first used.
"""

from typing import Any

__all__ = ["BYOL", "DINO", "SimSiam", "SwAV", "SymSimSiam", "build", "make_filter", "prepare"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from rdm_solo.methods import building

        return getattr(building, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
