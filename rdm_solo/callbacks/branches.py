"""Forward hooks that record both branches' outputs; no training step is copied."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rdm_solo.messages import UserError
from rdm_solo.methods.descriptions import Method


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
    tokens = "mean"  # how tokens become rows, as in `rows`
    m = Method.paper_m  # eigenvectors that count in the paper's alignment
    same = {"projection": "target"}  # outputs that are another output's tensor

    def __init__(self, module: Any, last_layer: Any = None) -> None:
        self.module = module
        self.last_layer = last_layer  # makes the target's logits if these go through a softmax
        self.recording = False
        self._removers: list[Callable[[], None]] = []
        self._recorded: dict[str, list[Tensor]] = defaultdict(list)

    def record_next_step(self) -> None:
        """Record the step that begins. Parts made in on_train_start, as SwAV's, exist by now."""
        if not self._removers:
            self._register()
        self._recorded.clear()  # of calls between two steps: a validation, `weight`
        self.recording = True

    def detach(self) -> None:
        """Remove the hooks."""
        while self._removers:
            self._removers.pop()()

    def take_calls(self) -> dict[str, list[Tensor]]:
        """Return the outputs of each call of the step, by branch."""
        self.recording = False
        calls = dict(self._recorded)
        self._recorded.clear()
        return calls

    def take(self, views: int | None = None, returned: Any = None) -> Outputs | None:
        """Return the outputs of the step's first ``views`` views, or of all views.

        ``returned`` is the result of the training step. None means that the step has no target by
        design.
        """
        recorded = {name: outputs[:views] for name, outputs in self.take_calls().items()}
        if isinstance(returned, Mapping) and {"online", "target"} <= returned.keys():
            return self._returned(returned)
        whole = {name: torch.cat(outputs) for name, outputs in recorded.items()}
        for name, other in self.same.items():
            if name not in whole and other in whole:
                whole[name] = whole[other]
        if "online" not in whole or "target" not in whole:
            raise RuntimeError(
                f"no outputs of the branches of {type(self.module).__name__} were recorded: return "
                "'online' and 'target' in training_step, or set diagnostics.every_n_epochs=0."
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

    def _hook(self, register: Callable[..., Any], part: Any, record: Any) -> None:
        self._removers.append(register(Hook(part, record), with_kwargs=True).remove)

    def _watch(self, part: Any, name: str, inputs: bool = False) -> None:
        """Record a part's outputs, or its inputs, in training."""

        def record(args: Any, kwargs: Any, *output: Any) -> None:
            if self._counts(part):
                self._record(name, (args, kwargs) if inputs else output)

        self._hook(
            part.register_forward_pre_hook if inputs else part.register_forward_hook, part, record
        )

    def _watch_calls(self, name: str, record: Callable[..., None]) -> None:
        """Call ``record`` with the result and the arguments of the module's method in training."""
        method, replaced = getattr(self.module, name), vars(self.module).get(name)

        def recorded(*args: Any, **kwargs: Any) -> Any:
            result = method(*args, **kwargs)
            if self._counts(self.module):
                record(result, *args, **kwargs)
            return result

        def remove() -> None:
            vars(self.module).pop(name, None)
            if replaced is not None:  # by the user
                setattr(self.module, name, replaced)

        setattr(self.module, name, recorded)
        self._removers.append(remove)

    def _counts(self, part: nn.Module) -> bool:
        """Return whether to record a call of that part now.

        A forward that gradient checkpointing repeats inside backward does not count.
        """
        in_backward = torch._C._current_graph_task_id() != -1
        return self.recording and self._in_training(part) and not in_backward

    def _in_training(self, part: nn.Module) -> bool:
        return part.training

    def _record(self, name: str, output: Any) -> None:
        """Keep a copy: what comes next may overwrite its input, as nn.ReLU(inplace=True) does."""
        self._recorded[name].append(rows(output, name, self.tokens).clone())


class Hook:
    """A hook on the calls of one module.

    It does nothing on copies of the module, such as an average of its weights, and on a module that
    was saved with :func:`torch.save`.
    """

    def __init__(self, watched: nn.Module | None, record: Callable[..., None] | None) -> None:
        self.watched, self.record = watched, record

    @torch.compiler.disable  # torch 2.15 fails to trace it, because it appends to a list
    def __call__(self, module: nn.Module, *call: Any) -> None:
        if self.record and (module is self.watched or getattr(module, "_is_replica", False)):
            self.record(*call)  # DataParallel's replicas count

    def __reduce__(self) -> tuple[Any, ...]:
        return Hook, (None, None)


def first_tensor(output: Any) -> Tensor | None:
    """Return the first tensor in an output, which may be a tuple or a mapping of several.

    >>> first_tensor({"loss": None, "tokens": (torch.ones(2), torch.zeros(3))})
    tensor([1., 1.])
    """
    if isinstance(output, Tensor):
        return output
    values: Iterable[Any] = output.values() if isinstance(output, Mapping) else ()
    values = output if isinstance(output, (tuple, list)) else values
    return next((x for x in map(first_tensor, values) if x is not None), None)


def rows(output: Any, of: str, tokens: str = "mean") -> Tensor:
    """Return the first tensor of an output as rows ``(N, k)``, without its graph.

    An image's row is the mean of its tokens ``(N, T, k)`` or of its map ``(N, k, H, W)``: tokens of
    one image differ by their place alone and would look like many images. With ``tokens="rows"``
    each of them is a row. ``of`` names the output in the message.

    >>> images = torch.arange(12.0).reshape(2, 3, 2)
    >>> rows(images, "head").tolist(), rows(images, "head", "rows").shape
    ([[2.0, 3.0], [8.0, 9.0]], torch.Size([6, 2]))
    """
    x = first_tensor(output)
    if x is None or not 2 <= x.ndim <= 4 or not x.is_floating_point():
        got = type(output).__name__ if x is None else f"{x.dtype} of shape {tuple(x.shape)}"
        raise UserError(
            f"{of} gives {got}, where rows (N, k), tokens (N, T, k) or maps (N, k, H, W) of "
            "floating-point numbers belong; name a part that gives these."
        )
    x = x.detach()
    if x.ndim == 4:
        x = x.flatten(2).mT
    if x.ndim == 3:
        wide = torch.promote_types(x.dtype, torch.float32)
        x = x.flatten(0, 1) if tokens == "rows" else x.mean(1, dtype=wide)
    return x
