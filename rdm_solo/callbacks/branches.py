"""Forward hooks that record both branches' outputs; no training step is copied."""

import functools
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rdm_solo.methods.descriptions import METHODS, Method


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
    """Records the outputs of a module's branches in a step that `record_next_step` announced.

    This one records what ``training_step`` returns; those below register hooks as well.

    ``normalize`` says whether outputs are still to be scaled to unit length; those of a softmax
    are taken as they are. ``m`` eigenvectors count in the paper's alignment. ``last_layer`` makes
    the target's logits, where these go through a softmax. ``same`` names outputs that are another
    one's tensor, and are not recorded again.
    """

    normalize = True
    m = Method.paper_m
    last_layer: Any = None
    same = {"projection": "target"}

    def __init__(self, module: Any) -> None:
        self.module = module
        self.recording = False
        self._handles: list[Any] = []
        self._recorded: dict[str, list[Tensor]] = defaultdict(list)

    def record_next_step(self) -> None:
        """Record the step that begins. SwAV's Sinkhorn, for one, must have been made by now."""
        if not self._handles:
            self._register()
        self.recording = True

    def detach(self) -> None:
        """Remove the hooks."""
        while self._handles:
            self._handles.pop().remove()

    def take(self, views: int | None = None, returned: Any = None) -> Outputs | None:
        """What was recorded of the step's first ``views`` views, or of all; None of a step that has
        no target by design.

        ``returned`` is what the training step gave back.
        """
        self.recording = False
        recorded = {name: outputs[:views] for name, outputs in self._recorded.items()}
        self._recorded.clear()
        if isinstance(returned, Mapping) and {"online", "target"} <= returned.keys():
            return self._returned(returned)
        whole = {name: torch.cat(outputs) for name, outputs in recorded.items()}
        for name, other in self.same.items():
            if name not in whole and other in whole:
                whole[name] = whole[other]
        if "online" not in whole or "target" not in whole:
            raise RuntimeError(
                f"no outputs of the branches of {type(self.module).__name__} were recorded: no "
                "module that diagnostics know was called, and training_step returned no dict with "
                "'online' and 'target'. Return them beside 'loss', or set "
                "diagnostics.every_n_epochs=0."
            )
        # With one call for all views, positives cannot be identified.
        apart = recorded["target"]
        positive = torch.cat(apart[1:] + apart[:1]) if len(apart) > 1 else None
        return Outputs(positive=positive, **whole)

    def _returned(self, given: Mapping[str, Any]) -> Outputs:
        self.normalize = bool(given.get("normalize", True))
        names = ("online", "target", "positive", "projection")
        kept = {name: given[name].detach() for name in names if given.get(name) is not None}
        return Outputs(**{"positive": None, "projection": kept["target"], **kept})

    @torch.no_grad()
    def weight(self) -> Tensor | None:
        """The last layer's weight ``(k, b)`` as it is now."""
        layer = self.last_layer
        if layer is None:
            return None
        layer(layer.weight.new_zeros(1, layer.in_features))  # weight norm is applied when it runs
        return layer.weight.detach()

    def _register(self) -> None:
        """Register the hooks."""

    def _watch(self, module: nn.Module, name: str, inputs: bool = False) -> None:
        """Record a module's outputs in training, or its inputs, under that name."""

        def record(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
            if self.recording and module.training:
                self._record(name, args[0] if inputs else output)

        self._handles.append(module.register_forward_hook(record))

    def _watch_calls(self, method: str, record: Callable[..., None]) -> None:
        """Hand the result and the arguments of each call of a module's method to ``record``."""
        original = getattr(self.module, method)

        @functools.wraps(original)
        def recorded(*args: Any) -> Any:
            result = original(*args)
            if self.recording and self.module.training:
                record(result, *args)
            return result

        setattr(self.module, method, recorded)
        self._handles.append(_Undo(lambda: delattr(self.module, method)))

    def _record(self, name: str, output: Tensor) -> None:
        self._recorded[name].append(output.detach())


class _Undo(NamedTuple):
    """What a hook's handle can do."""

    remove: Callable[[], None]


class _WithPredictor(Observer):
    """SimSiam's and BYOL's form: p is the predictor's output."""

    def __init__(self, module: Any) -> None:
        super().__init__(module)
        momentum = hasattr(module, "momentum_projector")
        alike = (known for known in METHODS.values() if known.asymmetry == "predictor")
        self.m = next(known.paper_m for known in alike if known.momentum == momentum)

    def _register(self) -> None:
        module = self.module
        self._watch(module.predictor, "online")
        target = getattr(module, "target_head", getattr(module, "momentum_projector", None))
        if target is None:
            self._watch(module.predictor, "target", inputs=True)
        else:
            self._watch(module.predictor, "projection", inputs=True)
            self._watch(target, "target")


class _WithNeighbours(_WithPredictor):
    """The target is what was found in a queue: earlier outputs, the nearest to those of a view."""

    def _register(self) -> None:
        self._watch(self.module.predictor, "online")
        self._watch(self.module.predictor, "projection", inputs=True)
        self._watch_calls("find_nn", self._record_nearest)

    def _record_nearest(self, found: tuple[Tensor, ...], *args: Any) -> None:
        nearest = found[1]
        self._record("target", nearest if nearest.ndim == 2 else nearest[:, 0])  # All4One's five


class _WithProjector(Observer):
    def _register(self) -> None:
        if hasattr(self.module, "momentum_projector"):
            self._watch(self.module.projector, "online")
            self._watch(self.module.momentum_projector, "target")
        else:
            self.same = {"online": "target", "projection": "target"}
            self._watch(self.module.projector, "target")


class _Swav(Observer):
    normalize = False
    same = {"projection": "online"}

    def __init__(self, module: Any) -> None:
        super().__init__(module)
        self.last_layer = module.prototypes

    def _register(self) -> None:
        self._handles.append(self.module.sk.register_forward_hook(self._record_step))
        self._watch(self.module.prototypes, "hidden", inputs=True)

    def _record_step(self, sinkhorn: nn.Module, args: tuple[Tensor], assignment: Tensor) -> None:
        if self.recording:
            # What follows the batch's rows is the queue's. The large crops come first.
            rows = len(self._recorded["hidden"][0])
            self._record("online", (args[0][:rows].float() / self.module.temperature).softmax(1))
            self._record("target", assignment[:rows])


class _DeepCluster(Observer):
    """The first set of prototypes, and the clusters that k-means gave the step's images."""

    normalize = False
    same = {"projection": "online"}

    def __init__(self, module: Any) -> None:
        super().__init__(module)
        self.last_layer = module.prototypes[0]

    def _register(self) -> None:
        self._watch(self.last_layer, "hidden", inputs=True)
        self._handles.append(self.last_layer.register_forward_hook(self._record_logits))
        self._watch_calls("update_memory_banks", self._record_clusters)

    def _record_logits(self, layer: nn.Module, args: tuple[Tensor], logits: Tensor) -> None:
        if self.recording and self.module.training:
            self._record("online", (logits.float() / self.module.temperature).softmax(1))

    def _record_clusters(self, result: None, images: Tensor, *args: Any) -> None:
        clusters = self.module.assignments[0].to(images.device)[images]
        known = clusters >= 0  # all others were not in the epoch before, of which k-means is
        for name in ("online", "hidden"):
            self._recorded[name] = [outputs[known] for outputs in self._recorded[name]]
        target = nn.functional.one_hot(clusters[known], self.last_layer.out_features).float()
        self._recorded["target"] = [target] * len(self._recorded["online"])

    def take(self, views: int | None = None, returned: Any = None) -> Outputs | None:
        outputs = super().take(views, returned)
        return outputs if outputs is not None and len(outputs.target) else None


class _Dino(Observer):
    normalize = False

    def __init__(self, module: Any) -> None:
        super().__init__(module)
        self.last_layer = module.momentum_head.last_layer

    def _register(self) -> None:
        # Before the loss: its forward moves the centre.
        loss = self.module.dino_loss_func
        self._handles.append(loss.register_forward_pre_hook(self._record_step))
        self._watch(self.last_layer, "hidden", inputs=True)

    def _record_step(self, loss: Any, args: tuple[Tensor, Tensor]) -> None:
        if not self.recording:
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


def observer(module: Any) -> Observer:
    """The observer that fits a module's parts."""
    if hasattr(module, "dino_loss_func"):
        return _Dino(module)
    if hasattr(module, "prototypes") and hasattr(module, "sk_iters"):
        return _Swav(module)
    if hasattr(module, "prototypes") and hasattr(module, "kmeans_iters"):
        return _DeepCluster(module)
    if hasattr(module, "predictor") and hasattr(module, "find_nn"):
        return _WithNeighbours(module)
    if hasattr(module, "predictor"):
        return _WithPredictor(module)
    if hasattr(module, "projector"):
        return _WithProjector(module)
    return Observer(module)
