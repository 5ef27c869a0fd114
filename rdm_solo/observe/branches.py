"""Forward hooks that record both branches' outputs."""

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rdm_solo.ground.errors import UserError
from rdm_solo.methods.descriptions import Method
from rdm_solo.observe.outputs import Outputs, combine, has_rows, rows, rows_by_view, views_of


class Branches(NamedTuple):
    """Names of the modules whose outputs are the branches.

    Without ``target``, the target is the predictor's input, or the online output itself if there is
    no predictor.
    """

    online: str
    target: str | None
    predictor: bool  # whether the online branch ends in a predictor


class MissingBranch(UserError):
    """A recorded step called no part of a branch."""


class Observer:
    """Record the outputs of a module's branches in steps requested with ``record_next_step``.

    This class reads the dict that ``training_step`` returns; its subclasses register hooks.
    """

    normalize = True  # whether outputs must be normalised to unit length
    tokens = "mean"  # how tokens become rows, as in `rows`
    m = Method.paper_m  # number of eigenvectors in the paper's alignment
    aliases = {"projection": "target"}  # if no projection is recorded
    branches: Branches | None = None  # None: the outputs are not those of two parts

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
                self._hook_outputs(self.backbone, "features")
        self._recorded.clear()  # left over if the previous step failed
        self.recording = True

    def detach(self) -> None:
        """Remove the hooks."""
        while self._removers:
            self._removers.pop()()

    def pop_outputs(self, views: int | None = None, step_output: Any = None) -> Outputs:
        """Return the step's outputs and stop recording; raise MissingBranch if a branch is missing.

        ``views`` is the number of views of each image, and ``step_output`` is what the training
        step returned. A step that has no target by design, as in the first epoch of DeepCluster v2,
        has no rows.
        """
        self.recording = False
        calls = dict(self._recorded)
        self._recorded.clear()
        if isinstance(step_output, Mapping) and {"online", "target"} <= step_output.keys():
            outputs = self._returned_outputs(step_output)
            if "features" in calls:
                by_view = rows_by_view({"features": calls["features"]}, views)
                outputs = outputs._replace(features=by_view["features"])
            return outputs
        combined = combine(calls, views, self.aliases)
        if combined is None:
            uncalled = sorted({"online", "target"} - calls.keys())
            raise MissingBranch(self.missing_message(" and the ".join(uncalled)))
        return combined

    def _returned_outputs(self, step_output: Mapping[str, Any]) -> Outputs:
        self.normalize = bool(step_output.get("normalize", self.normalize))
        outputs: dict[str, Any] = {"positive": None}
        for name in ("online", "target", "positive", "projection"):
            if step_output.get(name) is not None:
                outputs[name] = rows(step_output[name], name, self.tokens)
        outputs.setdefault("projection", outputs["target"])
        return Outputs(**outputs)

    def description(self) -> str:
        """Describe the outputs that are recorded, in one phrase."""
        return "the outputs that training_step returns"

    def missing_message(self, uncalled: str) -> str:
        """Return the error message for a step without a call of the ``uncalled`` branches."""
        return (
            f"this step recorded no call of the {uncalled} branch of "
            f"{type(self.module).__name__}; only calls in training mode and outside backward count."
        )

    @torch.no_grad()
    def weight(self) -> Tensor:
        """Return the last layer's current weight ``(k, b)``."""
        layer = self.last_layer
        layer(layer.weight.new_zeros(1, layer.in_features))  # so that weight norm updates it
        weight: Tensor = layer.weight.detach()
        return weight

    def _register(self) -> None:
        """Register the hooks."""

    def _hook(self, register: Callable[..., Any], part: Any, record: Callable[..., None]) -> None:
        """Pass the arguments of a part's hook to ``record``, in training."""

        def record_in_training(*call: Any) -> None:
            if self._is_recorded(part):
                record(*call)

        handle = register(Hook(part, record_in_training), with_kwargs=True)
        self._removers.append(handle.remove)

    def _hook_outputs(self, part: Any, name: str) -> None:
        """Record a part's outputs."""

        def record(args: Any, kwargs: Any, output: Any) -> None:
            for call in views_of(part, output):
                self._record(name, call)

        self._hook(part.register_forward_hook, part, record)

    def _hook_inputs(self, part: Any, name: str) -> None:
        """Record a part's inputs."""

        def record(*inputs: Any) -> None:
            for call in views_of(part, inputs):
                self._record(name, call)

        self._hook(part.register_forward_pre_hook, part, record)

    def _wrap_method(self, name: str, record: Callable[..., None]) -> None:
        """Pass a method's result and arguments to ``record``, in training."""
        method = getattr(self.module, name)
        user_method = vars(self.module).get(name)  # set on the object, not on its class

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
        if not self.recording or not self._in_training(part):
            return False
        # Gradient checkpointing repeats forward passes in backward, which has a graph task.
        return torch._C._current_graph_task_id() == -1

    def _in_training(self, part: nn.Module) -> bool:
        return part.training

    def _record(self, name: str, output: Any) -> None:
        """Store a copy, since an in-place module such as nn.ReLU(inplace=True) may overwrite it."""
        tokens = self.tokens
        if name == "features":
            tokens = "mean"
            if not has_rows(output):  # the backbone is found by name and may return anything
                return
        output_rows = rows(output, name, tokens)
        self._recorded[name].append(output_rows.clone())


class Hook:
    """A forward hook that records one module and its DataParallel replicas.

    Other copies, such as an EMA or a module loaded with :func:`torch.load`, are not recorded.
    """

    def __init__(self, watched: nn.Module | None, record: Callable[..., None] | None) -> None:
        self.watched = watched
        self.record = record
        if record is not None:
            # torch 2.15 fails to trace it, because it appends to a list. As a decorator, this would
            # load the compiler, which takes seconds, with this module.
            self.record = torch.compiler.disable(record)  # type: ignore[no-untyped-call]

    def __call__(self, module: nn.Module, *call: Any) -> None:
        is_replica = getattr(module, "_is_replica", False)  # set by torch's replicate()
        if self.record is not None and (module is self.watched or is_replica):
            self.record(*call)

    def __reduce__(self) -> tuple[Any, ...]:
        return Hook, (None, None)  # a copy or a saved module has a hook that does nothing
