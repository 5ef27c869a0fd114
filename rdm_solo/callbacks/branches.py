"""Forward hooks that record both branches' outputs; no training step is copied."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

__all__ = ["Observer", "Outputs", "observer"]


class Outputs(NamedTuple):
    """A step's outputs of all large crops, view after view, ``(V N, k)`` each.

    ``hidden`` ``(V N, b)`` went into the last layer before the target's softmax, where there is
    one.
    """

    online: Tensor
    target: Tensor
    positive: Tensor | None
    projection: Tensor
    hidden: Tensor | None = None


class Observer:
    """Listens to one module while ``listening`` is set.

    ``normalize`` says whether outputs are still to be scaled to unit length; those of a softmax
    are taken as they are. ``m`` eigenvectors count in the paper's alignment. ``last_layer`` makes
    the target's logits, where these go through a softmax.
    """

    normalize = True
    m = 512
    last_layer: nn.Module | None = None

    def __init__(self, module: Any) -> None:
        self.module = module
        self.listening = False
        self._handles: list[Any] = []
        names = ("online", "target", "projection", "hidden")
        self._heard: dict[str, list[Tensor]] = {name: [] for name in names}

    def attach(self) -> None:
        """Hang the hooks in; once is enough."""
        if not self._handles:
            self._handles = self._hooks()

    def detach(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def listen(self) -> None:
        """Hear the next step."""
        self.listening = True

    def take(self, views: int | None = None, returned: Any = None) -> Outputs:
        """What was heard of the first ``views`` views, or of all; the next step goes unheard again.

        ``returned`` is what the training step gave back.
        """
        self.listening = False
        heard = {name: outputs[:views] for name, outputs in self._heard.items()}
        for outputs in self._heard.values():
            outputs.clear()
        if isinstance(returned, Mapping) and {"online", "target"} <= returned.keys():
            return self._returned(returned)
        if not heard["online"] or not heard["target"]:
            raise RuntimeError(self._deaf())
        # What is one tensor under two names stays one.
        joined: dict[tuple[int, ...], Tensor] = {}
        target = heard["target"]
        # One call for all views leaves nobody able to tell whose view is whose.
        several = len(target) > 1
        whole: dict[str, Any] = {
            "positive": torch.cat(target[1:] + target[:1]) if several else None
        }
        for name, outputs in heard.items():
            if outputs:
                key = tuple(map(id, outputs))
                joined.setdefault(key, torch.cat(outputs))
                whole[name] = joined[key]
        whole.setdefault("projection", whole["target"])
        return Outputs(**whole)

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

    def _deaf(self) -> str:
        return (
            f"{type(self.module).__name__} ran a step in which nothing passed the places where "
            "its branches are listened to; switch diagnostics off, or let training_step return a "
            "dict with 'online' and 'target' beside 'loss'."
        )

    def _hooks(self) -> list[Any]:
        raise NotImplementedError

    def _hear(self, output: Tensor, *names: str) -> None:
        output = output.detach()
        for name in names:
            self._heard[name].append(output)

    def _output_of(self, module: nn.Module, *names: str) -> Any:
        """A hook that hears a module's training outputs under each of the names."""

        def see(module: nn.Module, args: Any, output: Tensor) -> None:
            if self.listening and module.training:
                self._hear(output, *names)

        return module.register_forward_hook(see)

    def _input_of(self, module: nn.Module) -> Any:
        """A hook that hears what goes into the last layer before a softmax."""

        def see(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
            if self.listening:
                self._hear(args[0], "hidden")

        return module.register_forward_hook(see)


class _WithPredictor(Observer):
    def __init__(self, module: Any) -> None:
        super().__init__(module)
        if hasattr(module, "momentum_projector"):  # BYOL: the paper has 256 outputs there
            self.m = 128

    def _hooks(self) -> list[Any]:
        module = self.module
        target = getattr(module, "target_head", getattr(module, "momentum_projector", None))

        def see(predictor: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
            if self.listening and predictor.training:
                names = ("projection",) if target is not None else ("projection", "target")
                self._hear(args[0], *names)
                self._hear(output, "online")

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

    def __init__(self, module: Any) -> None:
        super().__init__(module)
        self.last_layer = module.prototypes

    def _hooks(self) -> list[Any]:
        sinkhorn = self.module.sk.register_forward_hook(self._see)
        return [sinkhorn, self._input_of(self.module.prototypes)]

    def _see(self, sinkhorn: nn.Module, args: tuple[Tensor], assignment: Tensor) -> None:
        if self.listening:
            # What follows the batch's rows is the queue's. The large crops come first.
            rows = len(self._heard["hidden"][0])
            online = (args[0][:rows].float() / self.module.temperature).softmax(1)
            self._hear(online, "online", "projection")
            self._hear(assignment[:rows], "target")


class _Dino(Observer):
    normalize = False

    def __init__(self, module: Any) -> None:
        super().__init__(module)
        self.last_layer = module.momentum_head.last_layer

    def _hooks(self) -> list[Any]:
        # Before the loss: its forward moves the centre.
        loss = self.module.dino_loss_func.register_forward_pre_hook(self._see)
        return [loss, self._input_of(self.module.momentum_head.last_layer)]

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
                self._hear(view, name)


class _Returning(Observer):
    def _hooks(self) -> list[Any]:
        return []

    def _deaf(self) -> str:
        return (
            f"{type(self.module).__name__} has none of the parts that diagnostics listen to, and "
            "its training_step returned no dict with 'online' and 'target': return them beside "
            "'loss', or switch diagnostics off."
        )


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
    if hasattr(module, "training_step"):
        return _Returning(module)
    raise ValueError(
        f"{type(module).__name__} has none of the parts whose outputs are its two branches: "
        "predictor, projector, prototypes with Sinkhorn, or dino_loss_func; nor a training_step "
        "that could return them. Switch diagnostics off."
    )
