"""The parts of a module whose outputs are its branches, found by name.

Dotted names address nested modules. Wrappers such as DDP and torch.compile are ignored.
"""

from typing import Any

from torch import Tensor, nn

from rdm_solo.ground.errors import UserError, suggest
from rdm_solo.methods.descriptions import METHODS
from rdm_solo.observe.branches import Branches, Observer

# Names by role, in the order in which they are tried. solo-learn's methods have `predictor`,
# `projector` and `momentum_projector`, and ours also have `target_head`. lightly's models have
# `*_head` and `*_momentum`, stable-pretraining's have `*.student` and `*.teacher` inside a wrapper.
# lightly-train has `*_projection_head` and `*_embedding_model`, and DINOv2 `student.*` and
# `teacher.*`. lightly calls forward() of DINOv2's heads, which runs only the last layer's hooks.
# `proj`, `pred` and `*_mlp` are short names in users' own modules; MoCo has `encoder_q` and
# `encoder_k`, and MoCo v3 `base_encoder`.
# solo-learn's SwAV, DeepCluster v2 and DINO end in a softmax and have separate observers.
PARTS: dict[str, list[str]] = {
    "predictor": ["predictor", "prediction_head", "online_predictor", "prediction_mlp", "pred"],
    "target head": [
        "target_head",
        "momentum_projector",
        "projection_head_momentum",
        "teacher_projection_head",
        "teacher.dino_head",
        "teacher_head.dino_head.last_layer",
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
        "student_projection_head",
        "student.dino_head",
        "student_head.dino_head.last_layer",
        "student_head",
        "online_projector",
        "projection_mlp",
        "proj_head",
        "proj",
    ],
    "target encoder": [
        "target_encoder",
        "momentum_encoder",
        "ema_encoder",
        "backbone_momentum",
        "encoder_momentum",
        "encoder_k",
        "teacher_backbone",
        "teacher_embedding_model",
        "teacher.backbone",
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
        "student_embedding_model",
        "student.backbone",
        "student",
        "encoder_q",
        "base_encoder",
        "encoder",
        "backbone",
        "embedding_model",
    ],  # used as a branch only with a target encoder
    # It may be a classifier, so it is the last choice, and an encoder must stand beside it.
    "only head": ["head"],
}
# Attribute names of modules wrapped by DDP, DataParallel, torch.compile and Fabric.
WRAPPERS = ("module", "_orig_mod", "_forward_module", "_original_module")


def find(module: nn.Module) -> Branches | None:
    """Find the branches by the names in ``PARTS``; return None if there are none.

    >>> heads = ("projection_head", "prediction_head")
    >>> find(nn.ModuleDict({name: nn.Identity() for name in heads}))
    Branches(online='prediction_head', target=None, predictor=True)
    """
    names = {role: first_name(module, role) for role in PARTS}
    head, encoder = names["target head"], names["target encoder"]
    if names["predictor"]:
        return Branches(names["predictor"], head or encoder, True)
    if names["online head"]:
        return Branches(names["online head"], head, False)
    if names["online encoder"] and (head or encoder):
        return Branches(names["online encoder"], encoder or head, False)
    if names["online encoder"] and names["only head"]:
        return Branches(names["only head"], None, False)
    return None


def first_name(module: nn.Module, role: str) -> str | None:
    """Return the first name of a role that the module has a part for."""
    for name in PARTS[role]:
        if part(module, name) is not None:
            return name
    return None


def backbone(module: nn.Module, name: str | None = None) -> nn.Module | None:
    """Return the part whose outputs are the features, by default found by name; None if missing."""
    if name is not None:
        return require_part(module, "backbone", name)
    return part(module, backbone_name(module) or "")


def backbone_name(module: nn.Module) -> str | None:
    """Return the name of the part that computes features by the names in ``PARTS``, or None."""
    return first_name(module, "online encoder")


def prototypes(module: nn.Module, branches: Branches | None) -> int | None:
    """Return the number of outputs over which a student's loss takes a softmax, as in DINO.

    The student has a teacher and no predictor, and is a head by its name. Its last layer has more
    outputs than inputs.

    >>> heads = {name: nn.Linear(8, 64) for name in ("student_head", "teacher_head")}
    >>> model = nn.ModuleDict(heads)
    >>> prototypes(model, find(model))
    64
    """
    if branches is None or branches.predictor or branches.target is None:
        return None
    name = _bare(branches.online)
    if not name.endswith(("head", *PARTS["online head"])):
        return None
    head = require_part(module, "online", name)
    layers = [layer for layer in head.modules() if isinstance(layer, nn.Linear)]
    if not layers or layers[-1].out_features <= layers[-1].in_features:
        return None
    return layers[-1].out_features


def by_name(module: nn.Module, online: str, target: str | None = None) -> Branches:
    """Return the branches with these names; raise UserError if a part is missing.

    With ``online`` alone, the target is a predictor's input, or another part's own output. The
    latter is refused if the module has parts with which the loss probably compares it.

    >>> model = nn.ModuleDict({name: nn.Identity() for name in ("proj", "pred")})
    >>> by_name(model, "pred")
    Branches(online='pred', target=None, predictor=True)
    """
    for option, name in (("online", online), ("target", target)):
        if name is not None:
            require_part(module, option, name)
    if target == online:
        return Branches(online, None, False)
    predictor = _bare(online).rpartition(".")[2] in PARTS["predictor"]
    if target is None and not predictor:
        others = _other_branches(module, online)
        if others:
            raise UserError(
                f"online={online!r} alone would compare this part's outputs with themselves, but "
                f"{class_name(module)} also has {', '.join(others)}. Pass both parts whose outputs "
                f"the loss compares, or target={online!r} if it compares these with each other."
            )
    return Branches(online, target, predictor)


def _other_branches(module: nn.Module, online: str) -> list[str]:
    """Return the parts whose outputs a loss may compare, except those around or in ``online``."""
    names = []
    for role in PARTS:
        name = first_name(module, role)
        if name is None or role == "online encoder":
            continue
        is_around = f"{_bare(online)}.".startswith(f"{name}.")
        is_inside = f"{name}.".startswith(f"{_bare(online)}.")
        if not is_around and not is_inside:
            names.append(name)
    return names


def require_part(module: nn.Module, option: str, name: str) -> nn.Module:
    """Return the part that the user named; raise UserError if there is none."""
    submodule = part(module, name)
    if submodule is not None:
        return submodule
    names = [_bare(other) for other, _ in module.named_modules()]
    hint = suggest(_bare(name), names) or "."
    raise UserError(f"{option}={name!r}: {class_name(module)} has no such part{hint}")


def not_found_message(module: nn.Module) -> str:
    """Return the error message for a module without any branches in ``PARTS``."""
    has = ", ".join(name for name, _ in module.named_children()) or "none"
    return (
        f"no branches were found in {class_name(module)}, whose parts are: {has}. Name the "
        "parts whose outputs the loss compares: online='...', target='...' (nested: dotted names)."
    )


def part(module: Any, name: str) -> nn.Module | None:
    """Return the part with this dotted name, inside any wrappers; None if there is none."""
    for word in _bare(name).split("."):
        while getattr(module, word, None) is None and _wrapped(module) is not None:
            module = _wrapped(module)
        module = getattr(module, word, None)
        if not isinstance(module, nn.Module):
            return None
    return module  # type: ignore[no-any-return]


def class_name(module: Any) -> str:
    """Return the name of the class inside the wrappers."""
    return type(unwrap(module)).__name__


def unwrap(module: nn.Module) -> nn.Module:
    """Return the module inside the wrappers."""
    while (wrapped := _wrapped(module)) is not None:
        module = wrapped
    return module


def _wrapped(module: Any) -> nn.Module | None:
    """Return the module inside a wrapper, its only child with a name in ``WRAPPERS``, or None."""
    children: dict[str, nn.Module] = dict(module.named_children())
    if "_original_module" in children:  # Fabric keeps it next to DDP's wrapper
        return children["_original_module"]
    if len(children) != 1:
        return None
    ((name, child),) = children.items()
    return child if name in WRAPPERS else None


def _bare(name: str) -> str:
    """Return a dotted name without the names of wrappers."""
    return ".".join(word for word in name.split(".") if word not in WRAPPERS)


class ReturnedOutputs(Observer):
    """Read the outputs that a training step returns, for modules without parts of known names."""

    def missing_message(self, uncalled: str) -> str:
        return (
            f"{not_found_message(self.module)} Or return both outputs from training_step as "
            "'online' and 'target', in a dict with 'loss'."
        )


class ModuleObserver(Observer):
    """Record the outputs of submodules as branches; the online one ends in the predictor, if any.

    Teachers may always be in eval mode, so the training flags of the online part and of the whole
    module decide whether a call is recorded.
    """

    branches: Branches

    def __init__(self, module: Any, branches: Branches) -> None:
        super().__init__(module)
        self.branches = branches
        self.online = part(module, branches.online)
        if branches.predictor:
            # The paper's m for methods with a predictor (Appendix B.3).
            has_momentum = part(module, "momentum_projector") is not None
            for method in METHODS.values():
                if method.asymmetry == "predictor" and method.momentum == has_momentum:
                    self.m = method.paper_m
                    break
        elif branches.target is None:
            self.aliases = {"online": "target", "projection": "target"}
        else:  # a student and a teacher without a predictor: the student's head is judged
            self.aliases = {"projection": "online"}

    def description(self) -> str:
        online, target, predictor = self.branches
        if target is not None:
            target = repr(target)
        elif predictor:
            target = "its input"
        else:
            target = "its output"
        return f"online={online!r}, target={target}"

    def _in_training(self, part: nn.Module) -> bool:
        return bool(self.module.training and self.online and self.online.training)

    def _register(self) -> None:
        _, target, predictor = self.branches
        if target is not None:
            self._hook_outputs(part(self.module, target), "target")
        if not predictor:
            # Without a target either, both branches are the outputs of one part.
            self._hook_outputs(self.online, "target" if target is None else "online")
            return
        self._hook_outputs(self.online, "online")
        self._hook_inputs(self.online, "target" if target is None else "projection")

    def missing_message(self, uncalled: str) -> str:
        online, target, _ = self.branches
        return (
            f"{super().missing_message(uncalled)} Hooks are on online={online!r} and "
            f"target={target!r}. Pass parts that are called in each step: online='...', "
            "target='...'. With torch.compile, create the watch before the model's first call."
        )


class _WithNeighbours(ModuleObserver):
    """Record the nearest neighbour of each row in a queue of earlier outputs as the target."""

    def description(self) -> str:
        return f"online={self.branches.online!r}, target=nearest earlier outputs"

    def _register(self) -> None:
        self._hook_outputs(self.online, "online")
        self._hook_inputs(self.online, "projection")
        self._wrap_method("find_nn", self._record_nearest)

    def _record_nearest(self, result: tuple[Tensor, ...], z: Tensor) -> None:
        nearest = result[1]
        if nearest.ndim == 3:
            nearest = nearest[:, 0]  # All4One returns 5
        self._record("target", nearest)


def observer(module: Any) -> Observer:
    """Return the observer that fits a module's parts; it also records the backbone."""
    branch_observer = _branch_observer(module)
    branch_observer.backbone = backbone(module)
    return branch_observer


def _branch_observer(module: Any) -> Observer:
    if hasattr(module, "dino_loss_func") or hasattr(module, "prototypes"):
        from rdm_solo.observe import softmax_branches

        softmax_observer = softmax_branches.observer(module)
        if softmax_observer is not None:
            return softmax_observer
    branches = find(module)
    if branches is None:
        return ReturnedOutputs(module)
    if branches.predictor and hasattr(module, "find_nn"):
        return _WithNeighbours(module, branches)
    return ModuleObserver(module, branches)
