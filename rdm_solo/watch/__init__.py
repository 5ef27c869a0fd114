"""Watch the representation in any training loop for collapse; see docs/watch.md.

:class:`Watch` is for plain PyTorch loops, :class:`WatchCallback` for the Trainer of
``lightning`` or ``pytorch_lightning``, and :class:`WatchTrainerCallback` for the Trainer of
``transformers``. None of them needs solo-learn.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rdm_solo.collapse.rules import Bounds
from rdm_solo.watch.loop import Collapsed, Watch

if TYPE_CHECKING:
    from rdm_solo.watch.callback import WatchCallback
    from rdm_solo.watch.hugging_face import WatchTrainerCallback

__all__ = ["Bounds", "Collapsed", "Watch", "WatchCallback", "WatchTrainerCallback"]

# A plain loop needs no Lightning, and a Trainer's callback no other framework.
MODULES = {"WatchCallback": "callback", "WatchTrainerCallback": "hugging_face"}


def __getattr__(name: str) -> Any:
    if name not in MODULES:
        raise AttributeError(f"{__name__} has no attribute {name!r}")
    module = import_module(f"{__name__}.{MODULES[name]}")
    return getattr(module, name)
