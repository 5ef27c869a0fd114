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
    """A step's outputs of all large crops, view after view, ``(V N, k)`` each."""

    online: Tensor
    target: Tensor
    positive: Tensor | None
    projection: Tensor
    hidden: Tensor | None = None  # (V N, b): enters the last layer before the target's softmax


class Observer:
    """Records the outputs of a module's branches in a step that `record_next_step` announced.

    This class takes what ``training_step`` returns; those below register hooks as well.
    """

    normalize = True  # whether outputs are still to be scaled to unit length
    tokens = "mean"  # what becomes of tokens, as in `rows`
    first_epoch = 0  # before it there is no target by design
    most_rows = math.inf  # a longer step is not recorded, so that it cannot fill the memory
    m = Method.paper_m  # eigenvectors that count in the paper's alignment
    same = {"projection": "target"}  # outputs that are another one's tensor

    def __init__(self, module: Any, last_layer: Any = None) -> None:
        self.module = module
        self.last_layer = last_layer  # makes the target's logits, where these go through a softmax
        self.due = self.recording = False  # a step that was let go is due, and not recording
        self._removers: list[Callable[[], None]] = []
        self._recorded: dict[str, list[Tensor]] = defaultdict(list)

    def record_next_step(self) -> None:
        """Record the step that begins. Parts made in on_train_start, as SwAV's, exist by now."""
        if not self._removers:
            self._register()
        self._recorded.clear()  # of calls between two steps: a validation, `weight`
        self.due = self.recording = True

    def detach(self) -> None:
        """Remove the hooks."""
        while self._removers:
            self._removers.pop()()

    def take_calls(self) -> dict[str, list[Tensor]]:
        """Return the outputs of each call of the step, by branch."""
        self.due = self.recording = False
        calls = dict(self._recorded)
        self._recorded.clear()
        return calls

    def take(self, views: int | None = None, returned: Any = None) -> Outputs | None:
        """Return the outputs of the step's first ``views`` views, or of all; None for a step that
        has no target by design or was too long.

        ``returned`` is the result of the training step.
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

    def _returned(self, returned: Mapping[str, Any]) -> Outputs:
        self.normalize = bool(returned.get("normalize", self.normalize))
        outputs = {
            name: rows(returned[name], name, self.tokens)
            for name in ("online", "target", "positive", "projection")
            if returned.get(name) is not None
        }
        return Outputs(**{"positive": None, "projection": outputs["target"], **outputs})

    @torch.no_grad()
    def weight(self) -> Tensor | None:
        """Return the last layer's weight ``(k, b)`` as it is now."""
        layer = self.last_layer
        if layer is None:
            return None
        layer(layer.weight.new_zeros(1, layer.in_features))  # weight norm is applied when it runs
        return layer.weight.detach()

    def _register(self) -> None:
        """Register the hooks."""

    def _hook(self, register: Callable[..., Any], module: Any, record: Any, **options: Any) -> None:
        self._removers.append(register(Hook(module, record), **options).remove)

    def _watch(self, module: Any, name: str) -> None:
        """Record a module's outputs in training."""

        def record(args: Any, kwargs: Any, output: Any) -> None:
            if self._counts(module):
                self._record(name, output)

        self._hook(module.register_forward_hook, module, record, with_kwargs=True)

    def _watch_inputs(self, module: Any, name: str) -> None:
        """Record a module's inputs, before it can overwrite them, in calls that did not fail."""
        entered: list[Tensor] = []

        def enter(args: Any, kwargs: Any) -> None:
            entered.clear()
            if self._counts(module):
                entered.append(rows((args, kwargs), name, self.tokens).clone())

        def leave(args: Any, output: Any) -> None:
            if entered and self.recording:
                self._keep(name, entered.pop())

        self._hook(module.register_forward_pre_hook, module, enter, with_kwargs=True)
        self._hook(module.register_forward_hook, module, leave)

    def _watch_calls(self, method: str, record: Callable[..., None]) -> None:
        """Call ``record`` with the result and the arguments of the module's method in training."""

        def listener(*call: Any, **kwargs: Any) -> None:
            if self._counts(self.module):
                record(*call, **kwargs)

        self._removers.append(listen(self.module, method, listener))

    def _counts(self, part: nn.Module) -> bool:
        """Return whether to record a call of that part now, outside a forward that gradient
        checkpointing runs again inside backward."""
        in_backward = torch._C._current_graph_task_id() != -1
        return self.recording and self._in_training(part) and not in_backward

    def _in_training(self, part: nn.Module) -> bool:
        return part.training

    def _record(self, name: str, output: Any) -> None:
        """Keep a copy: what comes next may overwrite its input, as nn.ReLU(inplace=True) does."""
        self._keep(name, rows(output, name, self.tokens).clone())

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
    """Both branches are outputs of parts: the online one is a predictor's, where there is one.

    Parts without gradients may always be in evaluation mode, as teachers are, so the online part
    and the whole module decide whether a call belongs to training.
    """

    def __init__(self, module: Any, branches: Branches) -> None:
        super().__init__(module)
        self.branches = branches
        self.online = parts.part(module, branches.online)
        if branches.predictor:
            momentum = parts.part(module, "momentum_projector") is not None
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
            self._watch_inputs(self.online, "target" if target is None else "projection")
        if target is not None:
            self._watch(parts.part(self.module, target), "target")
        elif not predictor:
            self._watch(self.online, "target")


class _WithNeighbours(ByParts):
    """The target is an earlier output from a queue: the nearest to a view's."""

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

    def _register(self) -> None:
        self._hook(self.module.sk.register_forward_hook, self.module.sk, self._record_step)
        self._watch_inputs(self.last_layer, "hidden")

    def _record_step(self, args: tuple[Tensor], assignment: Tensor) -> None:
        if self.recording:
            # The queue's rows follow the batch's. The large crops come first.
            n = len(self._recorded["hidden"][0])
            self._record("online", (args[0][:n].float() / self.module.temperature).softmax(1))
            self._record("target", assignment[:n])


class _DeepCluster(Observer):
    """The first set of prototypes, and the clusters that k-means assigned to the step's images.

    k-means runs as each epoch begins, except the first.
    """

    normalize = False
    first_epoch = 1
    same = {"projection": "online"}

    def _register(self) -> None:
        layer = self.last_layer
        self._watch_inputs(layer, "hidden")
        self._hook(layer.register_forward_hook, layer, self._record_logits)
        self._watch_calls("update_memory_banks", self._record_clusters)

    def _record_logits(self, args: tuple[Tensor], logits: Tensor) -> None:
        if self.recording and self.module.training:
            self._record("online", (logits.float() / self.module.temperature).softmax(1))

    def _record_clusters(self, result: None, idxs: Tensor, *args: Any, **kwargs: Any) -> None:
        clusters = self.module.assignments[0].to(idxs.device)[idxs]
        # Images that k-means has not seen are left out. Finding their places waits for the device
        # once in a recorded step; a mask would wait in each choice of rows.
        seen = (clusters >= 0).nonzero()[:, 0]
        for name in ("online", "hidden"):
            self._recorded[name] = [outputs[seen] for outputs in self._recorded[name]]
        target = nn.functional.one_hot(clusters[seen], self.last_layer.out_features).float()
        self._recorded["target"] = [target] * len(self._recorded["online"])

    def take(self, views: int | None = None, returned: Any = None) -> Outputs | None:
        outputs = super().take(views, returned)
        return outputs if outputs is not None and len(outputs.target) else None


class _Dino(Observer):
    normalize = False

    def _register(self) -> None:
        # Before the loss: its forward moves the centre.
        loss = self.module.dino_loss_func
        self._hook(loss.register_forward_pre_hook, loss, self._record_step)
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


def observer(module: Any) -> Observer:
    """Return the observer that fits a module's parts."""
    if hasattr(module, "dino_loss_func"):
        return _Dino(module, module.momentum_head.last_layer)
    if hasattr(module, "prototypes") and hasattr(module, "sk_iters"):
        return _Swav(module, module.prototypes)
    if hasattr(module, "prototypes") and hasattr(module, "kmeans_iters"):
        return _DeepCluster(module, module.prototypes[0])
    branches = parts.find(module)
    if branches is None:
        return Observer(module)
    nearest = branches.predictor and hasattr(module, "find_nn")
    return _WithNeighbours(module, branches) if nearest else ByParts(module, branches)
