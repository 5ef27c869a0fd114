"""Watch the representation in any training loop for collapse; see docs/watch.md.

:class:`Watch` is for plain PyTorch loops, and :class:`WatchCallback` for the Trainer of
``lightning`` or ``pytorch_lightning``. Neither needs solo-learn.
"""

from typing import Any

from rdm_solo.collapse.rules import Bounds
from rdm_solo.watch.loop import Watch

__all__ = ["Bounds", "Watch", "WatchCallback"]


def __getattr__(name: str) -> Any:
    if name == "WatchCallback":  # a plain loop needs no Lightning
        from rdm_solo.watch.callback import WatchCallback

        return WatchCallback
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
