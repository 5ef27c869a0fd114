"""Forward hooks that record both branches' outputs; no training step is copied."""

import logging
import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rdm_solo.callbacks import parts
from rdm_solo.callbacks.hooks import Hook, listen
from rdm_solo.callbacks.parts import Branches
from rdm_solo.callbacks.rows import rows
from rdm_solo.methods.descriptions import METHODS, Method

log = logging.getLogger("rdm_solo")


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
    one's tensor, and are not recorded again. ``tokens`` says what becomes of outputs that are
    tokens (:func:`~rdm_solo.callbacks.rows.rows`). Before ``first_epoch``, from 0, there is no
    target by design, and nothing to record. A step of more than ``most_rows`` rows is let go, so
    that calls whose steps nobody ends fill no memory: it is still ``due``, and no longer recorded.
    """

    normalize = True
    tokens = "mean"
    first_epoch = 0
    most_rows = math.inf
    m = Method.paper_m
    last_layer: Any = None
    same = {"projection": "target"}

    def __init__(self, module: Any) -> None:
        self.module = module
        self.due = self.recording = False
        self._handles: list[Any] = []
        self._recorded: dict[str, list[Tensor]] = defaultdict(list)

    def record_next_step(self) -> None:
        """Record the step that begins. SwAV's Sinkhorn, for one, must have been made by now."""
        if not self._handles:
            self._register()
        self._recorded.clear()  # of calls between two steps: a validation, `weight`
        self.due = self.recording = True

    def detach(self) -> None:
        """Remove the hooks."""
        while self._handles:
            self._handles.pop().remove()

    def take_calls(self) -> dict[str, list[Tensor]]:
        """What each call of the step has given, by branch."""
        self.due = self.recording = False
        calls = dict(self._recorded)
        self._recorded.clear()
        return calls

    def take(self, views: int | None = None, returned: Any = None) -> Outputs | None:
        """What was recorded of the step's first ``views`` views, or of all; None of a step that has
        no target by design, or was let go.

        ``returned`` is what the training step gave back.
        """
        let_go = self.due and not self.recording
        recorded = {name: outputs[:views] for name, outputs in self.take_calls().items()}
        if let_go:
            return None
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
        self.normalize = bool(given.get("normalize", self.normalize))
        names = ("online", "target", "positive", "projection")
        kept = {
            name: rows(given[name], name, self.tokens)
            for name in names
            if given.get(name) is not None
        }
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

    def _watch(self, module: nn.Module, name: str) -> None:
        """Record a module's outputs in training under that name."""

        def record(args: Any, options: Any, output: Any) -> None:
            if self._counts(module):
                self._record(name, output)

        self._handles.append(module.register_forward_hook(Hook(module, record), with_kwargs=True))

    def _watch_inputs(self, module: nn.Module, name: str) -> None:
        """Record a module's inputs, as they came, of calls in training that did not fail."""
        entered: list[Tensor] = []

        def enter(args: Any, options: Any) -> None:
            entered.clear()
            if self._counts(module):
                entered.append(self._rows(name, (args, options)))

        def leave(args: Any, output: Any) -> None:
            if entered and self.recording:  # a step that was let go meanwhile is not
                self._keep(name, entered.pop())

        enters = module.register_forward_pre_hook(Hook(module, enter), with_kwargs=True)
        self._handles += [enters, module.register_forward_hook(Hook(module, leave))]

    def _watch_calls(self, method: str, record: Callable[..., None]) -> None:
        """Hand the result and the arguments of each call of the module's method to ``record``."""

        def listener(*given: Any, **options: Any) -> None:
            if self._counts(self.module):
                record(*given, **options)

        self._handles.append(listen(self.module, method, listener))

    def _counts(self, part: nn.Module) -> bool:
        """Whether a call of that part now is to be recorded."""
        return self.recording and self._in_training(part) and not _in_backward()

    def _in_training(self, part: nn.Module) -> bool:
        return part.training

    def _rows(self, name: str, output: Any) -> Tensor:
        """A copy: what comes next may overwrite its input, as nn.ReLU(inplace=True) does."""
        return rows(output, name, self.tokens).clone()

    def _record(self, name: str, output: Any) -> None:
        self._keep(name, self._rows(name, output))

    def _keep(self, name: str, x: Tensor) -> None:
        held = self._recorded[name]
        held.append(x)
        if sum(map(len, held)) > self.most_rows:
            self.recording = False
            self._recorded.clear()
            log.warning(
                f"warning: a step has more than {self.most_rows} rows, and is not measured: does "
                "each training step end with watch.step(), or is a larger max_rows needed?"
            )


class ByParts(Observer):
    """Both branches are outputs of parts: p is a predictor's, where there is one.

    What gets no gradients may always be in evaluation mode, as teachers are: the online part and
    the whole module say whether a call belongs to training.
    """

    def __init__(self, module: Any, branches: Branches) -> None:
        super().__init__(module)
        self.branches = branches
        self.online = parts.part(module, branches.online)
        if branches.predictor:
            momentum = parts.part(module, "momentum_projector") is not None
            alike = (known for known in METHODS.values() if known.asymmetry == "predictor")
            self.m = next(known.paper_m for known in alike if known.momentum == momentum)
        elif branches.target is None:
            self.same = {"online": "target", "projection": "target"}

    def _in_training(self, part: nn.Module) -> bool:
        return self.module.training and self.online.training

    def _register(self) -> None:
        _, target, predictor = self.branches
        if predictor or target is not None:
            self._watch(self.online, "online")
        if predictor:
            self._watch_inputs(self.online, "target" if target is None else "projection")
        if target is not None:
            self._watch(parts.part(self.module, target), "target")
        elif not predictor:
            self._watch(self.online, "target")


class _WithNeighbours(ByParts):
    """The target is what was found in a queue: earlier outputs, the nearest to those of a view."""

    def _register(self) -> None:
        self._watch(self.online, "online")
        self._watch_inputs(self.online, "projection")
        self._watch_calls("find_nn", self._record_nearest)

    def _record_nearest(self, found: tuple[Tensor, ...], z: Tensor) -> None:
        nearest = found[1]
        self._record("target", nearest if nearest.ndim == 2 else nearest[:, 0])  # All4One's five


class _Swav(Observer):
    normalize = False
    same = {"projection": "online"}

    def __init__(self, module: Any) -> None:
        super().__init__(module)
        self.last_layer = module.prototypes

    def _register(self) -> None:
        sinkhorn = self.module.sk
        hook = Hook(sinkhorn, self._record_step)
        self._handles.append(sinkhorn.register_forward_hook(hook))
        self._watch_inputs(self.module.prototypes, "hidden")

    def _record_step(self, args: tuple[Tensor], assignment: Tensor) -> None:
        if self.recording:
            # What follows the batch's rows is the queue's. The large crops come first.
            n = len(self._recorded["hidden"][0])
            self._record("online", (args[0][:n].float() / self.module.temperature).softmax(1))
            self._record("target", assignment[:n])


class _DeepCluster(Observer):
    """The first set of prototypes, and the clusters that k-means gave the step's images.

    k-means runs as each epoch begins, but for the first.
    """

    normalize = False
    first_epoch = 1
    same = {"projection": "online"}

    def __init__(self, module: Any) -> None:
        super().__init__(module)
        self.last_layer = module.prototypes[0]

    def _register(self) -> None:
        self._watch_inputs(self.last_layer, "hidden")
        hook = Hook(self.last_layer, self._record_logits)
        self._handles.append(self.last_layer.register_forward_hook(hook))
        self._watch_calls("update_memory_banks", self._record_clusters)

    def _record_logits(self, args: tuple[Tensor], logits: Tensor) -> None:
        if self.recording and self.module.training:
            self._record("online", (logits.float() / self.module.temperature).softmax(1))

    def _record_clusters(self, result: None, idxs: Tensor, *args: Any, **options: Any) -> None:
        clusters = self.module.assignments[0].to(idxs.device)[idxs]
        # All others were not in the epoch before, of which k-means is. This waits for the device,
        # once in a recorded step: for their places, not in each choice of rows by a mask.
        known = (clusters >= 0).nonzero()[:, 0]
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
        self._handles.append(loss.register_forward_pre_hook(Hook(loss, self._record_step)))
        self._watch_inputs(self.last_layer, "hidden")

    def _record_step(self, args: tuple[Tensor, Tensor]) -> None:
        if not self.recording:
            return
        loss = self.module.dino_loss_func
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


def _in_backward() -> bool:
    """Whether gradient checkpointing runs a forward a second time, inside backward."""
    return torch._C._current_graph_task_id() != -1


def observer(module: Any) -> Observer:
    """The observer that fits a module's parts."""
    if hasattr(module, "dino_loss_func"):
        return _Dino(module)
    if hasattr(module, "prototypes") and hasattr(module, "sk_iters"):
        return _Swav(module)
    if hasattr(module, "prototypes") and hasattr(module, "kmeans_iters"):
        return _DeepCluster(module)
    branches = parts.find(module)
    if branches is None:
        return Observer(module)
    nearest = branches.predictor and hasattr(module, "find_nn")
    return _WithNeighbours(module, branches) if nearest else ByParts(module, branches)
