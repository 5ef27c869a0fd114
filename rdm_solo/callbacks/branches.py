"""Forward hooks that record both branches' outputs; no training step is copied."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rdm_solo.methods.descriptions import METHODS, Method

__all__ = ["Observer", "Outputs", "observer"]


# The alignment's m of a method with a predictor and a momentum encoder.
PAPER_M_WITH_MOMENTUM = next(
    described.paper_m
    for described in METHODS.values()
    if described.predictor and described.momentum
)


class Outputs(NamedTuple):
    """A step's outputs of all large crops, view after view, ``(V N, k)`` each.

    ``hidden`` ``(V N, b)`` is the input of the last layer before the target's softmax, where there
    is one.
    """

    online: Tensor
    target: Tensor
    positive: Tensor | None
    projection: Tensor
    hidden: Tensor | None = None


class Observer:
    """Records the outputs of one module's branches while ``listening`` is set.

    ``normalize`` says whether outputs are still to be scaled to unit length; those of a softmax
    are taken as they are. ``m`` eigenvectors count in the paper's alignment. ``last_layer`` makes
    the target's logits, where these go through a softmax. ``same`` names outputs that are another
    one's tensor, and are not recorded again.
    """

    normalize = True
    m = Method.paper_m
    last_layer: nn.Module | None = None
    same: Mapping[str, str] = {"projection": "target"}

    def __init__(self, module: Any) -> None:
        self.module = module
        self.listening = False
        self._handles: list[Any] = []
        names = ("online", "target", "projection", "hidden")
        self._recorded: dict[str, list[Tensor]] = {name: [] for name in names}

    def attach(self) -> None:
        """Register the hooks; once is enough."""
        if not self._handles:
            self._handles = self._hooks()

    def detach(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def listen(self) -> None:
        """Record the next step."""
        self.listening = True

    def take(self, views: int | None = None, returned: Any = None) -> Outputs:
        """What was recorded of the first ``views`` views, or of all; the next step is not recorded.

        ``returned`` is what the training step gave back.
        """
        self.listening = False
        recorded = {name: outputs[:views] for name, outputs in self._recorded.items() if outputs}
        for outputs in self._recorded.values():
            outputs.clear()
        if isinstance(returned, Mapping) and {"online", "target"} <= returned.keys():
            return self._returned(returned)
        whole = {name: torch.cat(outputs) for name, outputs in recorded.items()}
        for name, other in self.same.items():
            if name not in whole and other in whole:
                whole[name] = whole[other]
        if "online" not in whole or "target" not in whole:
            raise RuntimeError(self._nothing_recorded())
        # With one call for all views, positives cannot be identified.
        views_apart = recorded["target"]
        several = len(views_apart) > 1
        positive = torch.cat(views_apart[1:] + views_apart[:1]) if several else None
        return Outputs(positive=positive, **whole)

    @torch.no_grad()
    def weight(self) -> Tensor | None:
        """The last layer's weight ``(k, b)`` as it is now."""
        if self.last_layer is None:
            return None
        layer: Any = self.last_layer
        layer(layer.weight.new_zeros(1, layer.in_features))  # weight norm is applied when it runs
        weight: Tensor = layer.weight.detach()
        return weight

    def _returned(self, given: Mapping[str, Any]) -> Outputs:
        self.normalize = bool(given.get("normalize", True))
        names = ("online", "target", "positive", "projection")
        x: dict[str, Any] = {name: given.get(name) for name in names}
        x = {name: None if value is None else value.detach() for name, value in x.items()}
        if x["projection"] is None:
            x["projection"] = x["target"]
        return Outputs(**x)

    def _nothing_recorded(self) -> str:
        return (
            f"{type(self.module).__name__} ran a step in which nothing passed the places where "
            "its branches are recorded; switch diagnostics off, or let training_step return a "
            "dict with 'online' and 'target' beside 'loss'."
        )

    def _hooks(self) -> list[Any]:
        raise NotImplementedError

    def _record(self, name: str, output: Tensor) -> None:
        self._recorded[name].append(output.detach())

    def _output_of(self, module: nn.Module, name: str) -> Any:
        """A hook that records a module's training outputs under that name."""

        def record(module: nn.Module, args: Any, output: Tensor) -> None:
            if self.listening and module.training:
                self._record(name, output)

        return module.register_forward_hook(record)

    def _input_of(self, module: nn.Module, name: str) -> Any:
        """A hook that records a module's training inputs under that name."""

        def record(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
            if self.listening and module.training:
                self._record(name, args[0])

        return module.register_forward_hook(record)


class _WithPredictor(Observer):
    """SimSiam's and BYOL's form: p is the predictor's output."""

    def __init__(self, module: Any) -> None:
        super().__init__(module)
        if hasattr(module, "momentum_projector"):
            self.m = PAPER_M_WITH_MOMENTUM

    def _hooks(self) -> list[Any]:
        module = self.module
        handles = [self._output_of(module.predictor, "online")]
        target = getattr(module, "target_head", getattr(module, "momentum_projector", None))
        if target is None:
            return [*handles, self._input_of(module.predictor, "target")]
        return [
            *handles,
            self._input_of(module.predictor, "projection"),
            self._output_of(target, "target"),
        ]


class _WithProjector(Observer):
    def _hooks(self) -> list[Any]:
        projector = self.module.projector
        target = getattr(self.module, "momentum_projector", None)
        if target is None:
            self.same = {"online": "target", "projection": "target"}
            return [self._output_of(projector, "target")]
        return [self._output_of(projector, "online"), self._output_of(target, "target")]


class _Swav(Observer):
    normalize = False
    same = {"projection": "online"}

    def __init__(self, module: Any) -> None:
        super().__init__(module)
        self.last_layer = module.prototypes

    def _hooks(self) -> list[Any]:
        sinkhorn = self.module.sk.register_forward_hook(self._record_step)
        return [sinkhorn, self._input_of(self.module.prototypes, "hidden")]

    def _record_step(self, sinkhorn: nn.Module, args: tuple[Tensor], assignment: Tensor) -> None:
        if self.listening:
            # What follows the batch's rows is the queue's. The large crops come first.
            rows = len(self._recorded["hidden"][0])
            self._record("online", (args[0][:rows].float() / self.module.temperature).softmax(1))
            self._record("target", assignment[:rows])


class _Dino(Observer):
    normalize = False

    def __init__(self, module: Any) -> None:
        super().__init__(module)
        self.last_layer = module.momentum_head.last_layer

    def _hooks(self) -> list[Any]:
        # Before the loss: its forward moves the centre.
        loss = self.module.dino_loss_func.register_forward_pre_hook(self._record_step)
        return [loss, self._input_of(self.module.momentum_head.last_layer, "hidden")]

    def _record_step(self, loss: Any, args: tuple[Tensor, Tensor]) -> None:
        if not self.listening:
            return
        student, teacher = (logits.float() for logits in args)
        sharp = float(loss.teacher_temp_schedule[loss.epoch])
        outputs = {
            "online": (student / loss.student_temp).softmax(1),
            "target": ((teacher - loss.center) / sharp).softmax(1),
            "projection": (teacher / loss.student_temp).softmax(1),
        }
        for name, output in outputs.items():
            for view in output.chunk(self.module.num_large_crops):
                self._record(name, view)


class _Returning(Observer):
    def _hooks(self) -> list[Any]:
        return []

    def _nothing_recorded(self) -> str:
        return (
            f"{type(self.module).__name__} has none of the parts that diagnostics record, and its "
            "training_step returned no dict with 'online' and 'target': return them beside "
            "'loss', or switch diagnostics off."
        )


def observer(module: Any) -> Observer:
    """The observer that fits a module's parts."""
    if hasattr(module, "dino_loss_func"):
        return _Dino(module)
    if hasattr(module, "prototypes") and hasattr(module, "sk_iters"):
        return _Swav(module)
    if hasattr(module, "predictor"):
        return _WithPredictor(module)
    if hasattr(module, "projector"):
        return _WithProjector(module)
    if hasattr(module, "training_step"):
        return _Returning(module)
    raise ValueError(
        f"{type(module).__name__} has none of the parts whose outputs are its two branches: "
        "predictor, projector, prototypes with Sinkhorn, or dino_loss_func; nor a training_step "
        "that could return them. Switch diagnostics off."
    )
