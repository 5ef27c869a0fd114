"""The methods, on either version of solo-learn.

Everything here needs solo-learn, which takes seconds to import: names are looked up when they are
first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rdm_solo.methods.models import (
        BYOL,
        DINO,
        FilteredBYOL,
        FilteredSimSiam,
        SimSiam,
        SwAV,
        Symmetric,
        SymSimSiam,
        build,
        make_filter,
        prepare,
    )

__all__ = [
    "BYOL",
    "DINO",
    "FilteredBYOL",
    "FilteredSimSiam",
    "SimSiam",
    "SwAV",
    "SymSimSiam",
    "Symmetric",
    "build",
    "make_filter",
    "prepare",
]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from rdm_solo.methods import models

        return getattr(models, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
