"""Where a method's two branches can be heard: forward hooks, so that no training step is copied.

:func:`observer` finds the place by the parts that a module has, whoever wrote it:

======================  ===========================================  ==============================
a module with           online                                       target
======================  ===========================================  ==============================
``dino_loss_func``      softmax of the student's logits              softmax, centred and sharpened
``prototypes``, ``sk``  softmax of the logits                        Sinkhorn's assignment
``predictor``           its output                                   ``target_head``, or
                                                                     ``momentum_projector``, or the
                                                                     predictor's input
``projector``           its output                                   ``momentum_projector``, or the
                                                                     same (a symmetric method)
======================  ===========================================  ==============================
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

__all__ = ["Observer", "Outputs", "observer"]


class Outputs(NamedTuple):
    """A step's outputs of all large crops, view after view, ``(V N, k)`` each."""

    online: Tensor
    target: Tensor
    positive: Tensor
    projection: Tensor


class Observer:
    """Listens to one module while ``listening`` is set.

    ``normalize`` says whether outputs are still to be scaled to unit length; those of a softmax
    are taken as they are.
    """

    normalize = True

    def __init__(self, module: Any) -> None:
        self.module = module
        self.listening = False
        self.rows = 0
        self._handles: list[Any] = []
        self._heard: dict[str, list[Tensor]] = {"online": [], "target": [], "projection": []}

    def attach(self) -> None:
        """Hang the hooks in; once is enough."""
        if not self._handles:
            self._handles = self._hooks()

    def detach(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def listen(self, rows: int) -> None:
        """Hear the next step, whose views have ``rows`` rows each."""
        self.listening, self.rows = True, rows

    def take(self, views: int) -> Outputs:
        """What was heard of the first ``views`` views; the next step goes unheard again."""
        self.listening = False
        heard = {name: outputs[:views] for name, outputs in self._heard.items()}
        for outputs in self._heard.values():
            outputs.clear()
        if not heard["online"] or not heard["target"]:
            raise RuntimeError(
                f"{type(self.module).__name__} ran a step in which nothing passed the places where "
                "its branches are listened to; switch diagnostics off, or override observer()."
            )
        target = heard["target"]
        joined = {name: torch.cat(outputs) for name, outputs in heard.items() if outputs}
        positive = torch.cat(target[1:] + target[:1])
        return Outputs(
            joined["online"], joined["target"], positive, joined.get("projection", joined["target"])
        )

    def _hooks(self) -> list[Any]:
        raise NotImplementedError

    def _hear(self, name: str, output: Tensor) -> None:
        self._heard[name].append(output.detach())

    def _output_of(self, module: nn.Module, *names: str) -> Any:
        """A hook that hears a module's training outputs under each of the names."""

        def see(module: nn.Module, args: Any, output: Tensor) -> None:
            if self.listening and module.training:
                for name in names:
                    self._hear(name, output)

        return module.register_forward_hook(see)


class _WithPredictor(Observer):
    def _hooks(self) -> list[Any]:
        module = self.module
        target = getattr(module, "target_head", getattr(module, "momentum_projector", None))

        def see(predictor: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
            if self.listening and predictor.training:
                self._hear("projection", args[0])
                self._hear("online", output)
                if target is None:
                    self._hear("target", args[0])

        handles = [module.predictor.register_forward_hook(see)]
        return handles if target is None else [*handles, self._output_of(target, "target")]


class _WithProjector(Observer):
    def _hooks(self) -> list[Any]:
        target = getattr(self.module, "momentum_projector", None)
        if target is None:
            return [self._output_of(self.module.projector, "online", "target")]
        return [
            self._output_of(self.module.projector, "online"),
            self._output_of(target, "target"),
        ]


class _Swav(Observer):
    normalize = False

    def _hooks(self) -> list[Any]:
        return [self.module.sk.register_forward_hook(self._see)]

    def _see(self, sinkhorn: nn.Module, args: tuple[Tensor], assignment: Tensor) -> None:
        if self.listening:
            # What follows the batch's rows is the queue's.
            online = (args[0][: self.rows].float() / self.module.temperature).softmax(1)
            self._hear("online", online)
            self._hear("projection", online)
            self._hear("target", assignment[: self.rows])


class _Dino(Observer):
    normalize = False

    def _hooks(self) -> list[Any]:
        # Before the loss: its forward moves the centre.
        return [self.module.dino_loss_func.register_forward_pre_hook(self._see)]

    def _see(self, loss: Any, args: tuple[Tensor, Tensor]) -> None:
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
                self._hear(name, view)


def observer(module: Any) -> Observer:
    """The observer that fits a module's parts; see the table above."""
    if hasattr(module, "dino_loss_func"):
        return _Dino(module)
    if hasattr(module, "prototypes") and hasattr(module, "sk_iters"):
        return _Swav(module)
    if hasattr(module, "predictor"):
        return _WithPredictor(module)
    if hasattr(module, "projector"):
        return _WithProjector(module)
    raise ValueError(
        f"{type(module).__name__} has none of the parts whose outputs are its two branches: "
        "predictor, projector, prototypes with Sinkhorn, or dino_loss_func; switch diagnostics off."
    )
