"""The parts of a module whose outputs are its branches, found by name.

A dotted name leads into a part. Wrappers such as DDP's and torch.compile's are looked through.
"""

from typing import Any, NamedTuple

from torch import Tensor, nn

from rdm_solo.callbacks.branches import Observer
from rdm_solo.messages import UserError, suggest
from rdm_solo.methods.descriptions import METHODS

# By role, the names in the order in which they are tried. solo-learn's methods have `predictor`,
# `projector` and `momentum_projector`, ours `target_head` as well; lightly's models the names with
# `_head` and `_momentum`; stable-pretraining's `.student` and `.teacher` inside a wrapper. SwAV's
# and DINO's of solo-learn go through a softmax and have observers of their own.
PARTS: dict[str, list[str]] = {
    "predictor": ["predictor", "prediction_head", "online_predictor"],
    "target head": [
        "target_head",
        "momentum_projector",
        "projection_head_momentum",
        "teacher_head",
        "momentum_head",
        "target_projector",
        "projector.teacher",
        "cls_head.teacher",
    ],
    "online head": [
        "projector.student",
        "cls_head.student",
        "projector",
        "projection_head",
        "student_head",
        "online_projector",
    ],
    "target encoder": [
        "target_encoder",
        "momentum_encoder",
        "ema_encoder",
        "backbone_momentum",
        "encoder_momentum",
        "teacher_backbone",
        "encoder.teacher",
        "backbone.teacher",
        "teacher",
    ],
    "online encoder": [
        "context_encoder",
        "online_encoder",
        "encoder.student",
        "backbone.student",
        "student_backbone",
        "student",
        "encoder",
        "backbone",
    ],  # only beside a target encoder
}
# The names that DDP and DataParallel, torch.compile, and Fabric give to what they wrap.
WRAPPERS = ("module", "_orig_mod", "_forward_module", "_original_module")


class Branches(NamedTuple):
    """The names of the parts whose outputs are the branches'.

    Without ``target`` the online branch is the target's as well or, where it is a ``predictor``,
    what enters it is the target.
    """

    online: str
    target: str | None
    predictor: bool  # whether the online branch ends in a predictor


def find(module: nn.Module) -> Branches | None:
    """Return the branches by the table; None where the module has no such parts.

    >>> heads = ("projection_head", "prediction_head")
    >>> find(nn.ModuleDict({name: nn.Identity() for name in heads}))
    Branches(online='prediction_head', target=None, predictor=True)
    """
    names = {
        role: next((name for name in tried if part(module, name) is not None), None)
        for role, tried in PARTS.items()
    }
    head, encoder = names["target head"], names["target encoder"]
    if names["predictor"]:
        return Branches(names["predictor"], head or encoder, True)
    if names["online head"]:
        return Branches(names["online head"], head, False)
    if names["online encoder"] and (head or encoder):
        return Branches(names["online encoder"], encoder or head, False)
    return None


def named(module: nn.Module, online: str, target: str | None = None) -> Branches:
    """Return the branches with these names. A missing part is an error."""
    for option, name in (("online", online), ("target", target)):
        if name is not None and part(module, name) is None:
            names = dict.fromkeys(_bare(other) for other, _ in module.named_modules())
            hint = suggest(_bare(name), names) or "."
            raise UserError(f"{option}={name!r}: {kind(module)} has no such part{hint}")
    predictor = _bare(online).rpartition(".")[2] in PARTS["predictor"]
    return Branches(online, None if target == online else target, predictor)


def not_found(module: nn.Module) -> str:
    """Return the message for a module that has none of the table's parts."""
    has = ", ".join(name for name, _ in module.named_children()) or "none"
    return (
        f"no branches were found in {kind(module)}, whose parts are: {has}. Name the parts whose "
        "outputs the loss compares: online='...', target='...' (or parts of parts: 'net.head')."
    )


def part(module: Any, name: str) -> nn.Module | None:
    """Return the part of that dotted name, through any wrappers; None where there is none."""
    for word in _bare(name).split("."):
        inner = getattr(module, word, None)
        while inner is None and (wrapped := _wrapped(module)) is not None:
            module = wrapped
            inner = getattr(module, word, None)
        if not isinstance(inner, nn.Module):
            return None
        module = inner
    return module


def kind(module: Any) -> str:
    """Return the name of the class inside the wrappers."""
    while (wrapped := _wrapped(module)) is not None:
        module = wrapped
    return type(module).__name__


def _wrapped(module: Any) -> nn.Module | None:
    """Return a wrapper's module: its only child, under a wrapper's name."""
    children = dict(module.named_children())
    if "_original_module" in children:  # Fabric's, beside the one that DDP wraps
        return children["_original_module"]
    only = next(iter(children), None) if len(children) == 1 else None
    return children[only] if only in WRAPPERS else None


def _bare(name: str) -> str:
    """Return a dotted name without the names of wrappers."""
    return ".".join(word for word in name.split(".") if word not in WRAPPERS)


class ByParts(Observer):
    """Both branches are outputs of parts: the online one is a predictor's, where there is one.

    Parts without gradients may always be in evaluation mode, as teachers are, so the online part
    and the whole module decide whether a call belongs to training.
    """

    def __init__(self, module: Any, branches: Branches) -> None:
        super().__init__(module)
        self.branches = branches
        self.online = part(module, branches.online)
        if branches.predictor:
            momentum = part(module, "momentum_projector") is not None
            methods = (each for each in METHODS.values() if each.asymmetry == "predictor")
            self.m = next(each.paper_m for each in methods if each.momentum == momentum)
        elif branches.target is None:
            self.same = {"online": "target", "projection": "target"}

    def _in_training(self, part: nn.Module) -> bool:
        return bool(self.module.training and self.online and self.online.training)

    def _register(self) -> None:
        _, target, predictor = self.branches
        if predictor or target is not None:
            self._watch(self.online, "online")
        if predictor:
            self._watch(self.online, "target" if target is None else "projection", inputs=True)
        if target is not None:
            self._watch(part(self.module, target), "target")
        elif not predictor:
            self._watch(self.online, "target")


class _WithNeighbours(ByParts):
    """The target is an earlier output from a queue: the nearest to a view's."""

    def _register(self) -> None:
        self._watch(self.online, "online")
        self._watch(self.online, "projection", inputs=True)
        self._watch_calls("find_nn", self._record_nearest)

    def _record_nearest(self, result: tuple[Tensor, ...], z: Tensor) -> None:
        nearest = result[1]
        self._record("target", nearest if nearest.ndim == 2 else nearest[:, 0])  # All4One's five


def observer(module: Any) -> Observer:
    """Return the observer that fits a module's parts."""
    if hasattr(module, "dino_loss_func") or hasattr(module, "prototypes"):
        from rdm_solo.callbacks import softmax_branches

        if observed := softmax_branches.observer(module):
            return observed
    branches = find(module)
    if branches is None:
        return Observer(module)
    nearest = branches.predictor and hasattr(module, "find_nn")
    return _WithNeighbours(module, branches) if nearest else ByParts(module, branches)
