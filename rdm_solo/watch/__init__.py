"""Watch the representation in any training loop for collapse; see docs/watch.md.

:class:`Watch` is for plain PyTorch loops, and :class:`WatchCallback` for the Trainer of
``lightning`` or ``pytorch_lightning``. Neither needs solo-learn.
"""

from typing import TYPE_CHECKING

from rdm_solo import import_on_first_use
from rdm_solo.collapse.rules import Bounds
from rdm_solo.watch.loop import Collapsed, Watch

if TYPE_CHECKING:
    from rdm_solo.watch.callback import WatchCallback

__all__ = ["Bounds", "Collapsed", "Watch", "WatchCallback"]


# A plain loop needs no Lightning.
__getattr__ = import_on_first_use(["WatchCallback"], "rdm_solo.watch.callback")
