"""Forward hooks that record both branches' outputs."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rdm_solo.ground.errors import UserError
from rdm_solo.methods.descriptions import Method


class Outputs(NamedTuple):
    """A step's outputs for all large crops, concatenated by view, each of shape ``(V N, k)``."""

    online: Tensor
    target: Tensor
    positive: Tensor | None  # the target's output for the next view; None if one call had all views
    projection: Tensor
    hidden: Tensor | None = None  # (V N, b): input of the last layer before the softmax
    features: Sequence[Tensor] | None = None  # of the backbone: one tensor per view, or one for all

    def to(self, device: torch.device) -> "Outputs":
        """Return the outputs on a device, without the features."""
        return Outputs(
            online=self.online.to(device),
            target=self.target.to(device),
            positive=None if self.positive is None else self.positive.to(device),
            projection=self.projection.to(device),
            hidden=None if self.hidden is None else self.hidden.to(device),
        )


class Observer:
    """Record the outputs of a module's branches in steps requested with ``record_next_step``.

    This class reads the dict that ``training_step`` returns; its subclasses register hooks.
    """

    normalize = True  # whether outputs must be normalised to unit length
    tokens = "mean"  # how tokens become rows, as in `rows`
    m = Method.paper_m  # number of eigenvectors in the paper's alignment
    aliases = {"projection": "target"}  # if no projection is recorded

    def __init__(self, module: Any, last_layer: Any = None) -> None:
        self.module = module
        self.last_layer = last_layer  # computes the logits, for methods with a softmax
        self.backbone: nn.Module | None = None  # recorded as `features`
        self.recording = False
        self._removers: list[Callable[[], None]] = []
        self._recorded: dict[str, list[Tensor]] = defaultdict(list)

    def record_next_step(self) -> None:
        """Record the next step. Hooks are registered late because SwAV adds modules in training."""
        if not self._removers:
            self._register()
            if self.backbone is not None:
                self._hook_part(self.backbone, "features")
        self._recorded.clear()  # left over if the previous step failed
        self.recording = True

    def detach(self) -> None:
        """Remove the hooks."""
        while self._removers:
            self._removers.pop()()

    def pop_calls(self) -> dict[str, list[Tensor]]:
        """Return the outputs of the step's calls by branch, and stop recording."""
        self.recording = False
        calls = dict(self._recorded)
        self._recorded.clear()
        return calls

    def pop_outputs(self, views: int | None = None, step_output: Any = None) -> Outputs | None:
        """Return the outputs of the step's first ``views`` views, or of all views.

        ``step_output`` is what the training step returned. Subclasses return None for a step
        that has no target by design, as in the first epoch of DeepCluster v2.
        """
        recorded = {name: calls[:views] for name, calls in self.pop_calls().items()}
        features = recorded.pop("features", None)
        if features is not None and (views is None or len({len(x) for x in features}) > 1):
            features = [torch.cat(features)]
        if isinstance(step_output, Mapping) and {"online", "target"} <= step_output.keys():
            return self._from_step_output(step_output)._replace(features=features)
        outputs = {name: torch.cat(calls) for name, calls in recorded.items()}
        for name, other in self.aliases.items():
            if name not in outputs and other in outputs:
                outputs[name] = outputs[other]
        if "online" not in outputs or "target" not in outputs:
            raise RuntimeError(
                f"no branch outputs of {type(self.module).__name__} were recorded: return 'online' "
                "and 'target' from training_step, or set diagnostics.every_n_epochs=0."
            )
        # With one call for all views, positives cannot be identified.
        target_views = recorded["target"]
        next_views = target_views[1:] + target_views[:1]
        positive = torch.cat(next_views) if len(next_views) > 1 else None
        return Outputs(positive=positive, features=features, **outputs)

    def _from_step_output(self, step_output: Mapping[str, Any]) -> Outputs:
        self.normalize = bool(step_output.get("normalize", self.normalize))
        outputs = {
            name: rows(step_output[name], name, self.tokens)
            for name in ("online", "target", "positive", "projection")
            if step_output.get(name) is not None
        }
        return Outputs(
            online=outputs["online"],
            target=outputs["target"],
            positive=outputs.get("positive"),
            projection=outputs.get("projection", outputs["target"]),
        )

    @torch.no_grad()
    def weight(self) -> Tensor | None:
        """Return the last layer's current weight ``(k, b)``."""
        layer = self.last_layer
        if layer is None:
            return None
        layer(layer.weight.new_zeros(1, layer.in_features))  # so that weight norm updates it
        weight: Tensor = layer.weight.detach()
        return weight

    def _register(self) -> None:
        """Register the hooks."""

    def _hook(self, register: Callable[..., Any], part: Any, record: Any) -> None:
        self._removers.append(register(Hook(part, record), with_kwargs=True).remove)

    def _hook_part(self, part: Any, name: str, inputs: bool = False) -> None:
        """Record a part's outputs, or its inputs, in training mode."""

        def record(args: Any, kwargs: Any, *output: Any) -> None:
            if self._is_recorded(part):
                self._record(name, (args, kwargs) if inputs else output)

        self._hook(
            part.register_forward_pre_hook if inputs else part.register_forward_hook, part, record
        )

    def _wrap_method(self, name: str, record: Callable[..., None]) -> None:
        """Pass the result and the arguments of each call of a method to ``record``, in training."""
        method, user_method = getattr(self.module, name), vars(self.module).get(name)

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            result = method(*args, **kwargs)
            if self._is_recorded(self.module):
                record(result, *args, **kwargs)
            return result

        def remove() -> None:
            vars(self.module).pop(name, None)
            if user_method is not None:
                setattr(self.module, name, user_method)

        setattr(self.module, name, wrapper)
        self._removers.append(remove)

    def _is_recorded(self, part: nn.Module) -> bool:
        """Return whether to record a call of this part."""
        # Gradient checkpointing repeats forward passes in backward.
        in_backward = torch._C._current_graph_task_id() != -1
        return self.recording and self._in_training(part) and not in_backward

    def _in_training(self, part: nn.Module) -> bool:
        return part.training

    def _record(self, name: str, output: Any) -> None:
        """Store a copy, since an in-place module such as nn.ReLU(inplace=True) may overwrite it."""
        if name == "features" and not has_rows(output):
            return  # the backbone is found by name and may return anything
        tokens = "mean" if name == "features" else self.tokens
        self._recorded[name].append(rows(output, name, tokens).clone())


class Hook:
    """A forward hook that records one module and its DataParallel replicas.

    Other copies, such as an EMA or a module loaded with :func:`torch.load`, are not recorded.
    """

    def __init__(self, watched: nn.Module | None, record: Callable[..., None] | None) -> None:
        self.watched, self.record = watched, record

    # torch 2.15 fails to trace it, because it appends to a list.
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def __call__(self, module: nn.Module, *call: Any) -> None:
        if self.record and (module is self.watched or getattr(module, "_is_replica", False)):
            self.record(*call)

    def __reduce__(self) -> tuple[Any, ...]:
        return Hook, (None, None)


def first_tensor(output: Any) -> Tensor | None:
    """Return the first tensor in an output, which may be a tensor, a sequence or a mapping.

    >>> first_tensor({"loss": None, "tokens": (torch.ones(2), torch.zeros(3))})
    tensor([1., 1.])
    """
    if isinstance(output, Tensor):
        return output
    values: Iterable[Any] = output.values() if isinstance(output, Mapping) else ()
    values = output if isinstance(output, (tuple, list)) else values
    return next((x for x in map(first_tensor, values) if x is not None), None)


def by_view(calls: Mapping[str, Sequence[Tensor]], views: int) -> dict[str, list[Tensor]] | None:
    """Sort the calls by view; return None if they do not divide into views.

    With gradient accumulation, a step calls the parts batch by batch. The first ``views`` calls of
    each batch are its views.

    >>> a1, a2, small, b1, b2 = torch.arange(5.0).reshape(5, 1, 1)
    >>> calls = {"target": [a1, a2, b1, b2], "online": [a1, a2, small, b1, b2, small]}
    >>> [[int(x) for x in outputs] for outputs in by_view(calls, 2).values()]
    [[0, 3, 1, 4], [0, 3, 1, 4]]
    """
    batches, rest = divmod(len(calls["target"]), views)
    if rest or not batches:
        return None
    ordered = {}
    for name, outputs in calls.items():
        size, rest = divmod(len(outputs), batches)
        if rest or size < views:
            return None
        starts = range(0, len(outputs), size)
        ordered[name] = [outputs[start + view] for view in range(views) for start in starts]
    rows = [len(call) for call in ordered["target"]]
    return ordered if rows == rows[:batches] * views else None


def has_rows(output: Any) -> bool:
    """Return whether :func:`rows` accepts an output."""
    x = first_tensor(output)
    return x is not None and 2 <= x.ndim <= 4 and x.is_floating_point()


def rows(output: Any, name: str, tokens: str = "mean") -> Tensor:
    """Return the first tensor of an output as rows ``(N, k)``, without its graph.

    An image's row is the mean of its tokens ``(N, T, k)`` or of its map ``(N, k, H, W)``, because
    its tokens differ mostly by position and would count as several images. With ``tokens="rows"``
    each token is a row. Error messages contain ``name``.

    >>> images = torch.arange(12.0).reshape(2, 3, 2)
    >>> rows(images, "head").tolist(), rows(images, "head", "rows").shape
    ([[2.0, 3.0], [8.0, 9.0]], torch.Size([6, 2]))
    """
    x = first_tensor(output)
    if x is None or not has_rows(x):
        received = type(output).__name__ if x is None else f"{x.dtype} of shape {tuple(x.shape)}"
        raise UserError(
            f"{name} returned {received}; expected rows (N, k), tokens (N, T, k) or maps "
            "(N, k, H, W) of floating-point numbers. Name another part."
        )
    x = x.detach()
    if x.ndim == 4:
        x = x.flatten(2).mT
    if x.ndim == 3:
        dtype = torch.promote_types(x.dtype, torch.float32)
        x = x.flatten(0, 1) if tokens == "rows" else x.mean(1, dtype=dtype)
    return x
