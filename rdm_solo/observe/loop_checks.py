"""Checks of a training loop's structure in its first steps."""

from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from rdm_solo.observe.branches import Branches
from rdm_solo.observe.outputs import first_tensor, has_rows
from rdm_solo.observe.parts import PARTS, ModuleObserver, first_name, part

STEPS = 10
# Weights that change by this share also change a moving average in float32, for a momentum of up
# to 0.9999.
VISIBLE = 1e-3
CHECKS = {
    "stop-gradient": "gradient reaches the target at {!r} without passing through a predictor: "
    "call detach() on the target in the loss, unless negatives or a variance term of your loss "
    "prevent collapse.",
    "asymmetry": "the predictor {!r} returns its input, so both branches have the same outputs: "
    "use a network with weights, such as two linear layers with a ReLU between them.",
    "predictor": "no gradient reaches the parameters of the predictor {!r}: do not detach its "
    "output, call it with gradients enabled, and set requires_grad on its parameters.",
    "frozen target": "the target {!r} does not move although the online branch does: update it "
    "after each optimizer step with a momentum below 1, unless it should stay as it is.",
    "copied target": "the target {!r} always has the online branch's weights: make it a deepcopy, "
    "and update it with a momentum above 0.",
    "views": "{!r} receives the same view of an image twice: draw a random augmentation for each "
    "view.",
    "constant": "{!r} returns the same output for all images: look for a zero layer or a ReLU "
    "without positive values at its end.",
}


@dataclass(frozen=True)
class Finding:
    """A mistake in the loop: the key in ``CHECKS``, the part, and a sentence with the remedy."""

    check: str
    part: str
    text: str


class LoopChecks(ModuleObserver):
    """Check the structure of a training loop in its first ``STEPS`` steps, then remove all hooks.

    The hooks change neither outputs nor gradients. Call :meth:`after_step` after each forward and
    backward. ``views`` is the number of views of each image.

    >>> model = nn.ModuleDict({"projector": nn.Linear(4, 3), "predictor": nn.Linear(3, 3)})
    >>> checks = LoopChecks(model, Branches("predictor", None, predictor=True))
    >>> z1, z2 = map(model["projector"], torch.randn(2, 8, 4))
    >>> (model["predictor"](z1) - z2).square().mean().backward()  # z2.detach() is missing
    >>> [finding.check for finding in checks.after_step()]
    ['stop-gradient']
    """

    def __init__(self, module: nn.Module, branches: Branches, views: int | None = None) -> None:
        super().__init__(module, branches)
        self.views = views or 2
        self.steps = 0
        # Whether calls or steps showed what a check looks for, by check and part.
        self._signs: dict[tuple[str, str], list[bool]] = defaultdict(list)
        self._weights: dict[str, tuple[Tensor, Tensor]] = {}
        self._register()
        self._begin_step()
        self.recording = True

    def after_step(self) -> list[Finding]:
        """Return the new findings."""
        if not self.recording:
            return []
        keys = []
        if self.source is not None and any(map(_has_rest, self._gradients.values())):
            keys.append(("stop-gradient", self.source))
            self.source = None
        if self.trains_predictor and any(self._norms.values()):
            has_gradient = any(self._norms[True])
            self._signs["predictor", self.branches.online].append(not has_gradient)
        same_views = self._same_views[1:] or self._same_views
        if same_views:
            self._signs["views", self.viewed].append(all(same_views))
        self._begin_step()
        self.steps += 1
        if self.steps == STEPS:
            self.detach()
            self.recording = False
            keys += [key for key, signs in self._signs.items() if len(signs) > 1 and all(signs)]
        return [Finding(check, name, CHECKS[check].format(name)) for check, name in keys]

    def _begin_step(self) -> None:
        # The gradients at an output and, with a minus sign, those that come through the predictor.
        # An output is a node of the graph and the number of the node's output.
        self._gradients: dict[Any, list[Tensor]] = {}
        self._followed: set[Any] = set()  # nodes of the graph
        self._norms: dict[bool, list[Tensor]] = defaultdict(list)  # True: of the predictor
        self._first_call: list[Tensor] = []
        self._same_views: list[bool] = []

    def _register(self) -> None:
        online, target, has_predictor = self.branches
        head = first_name(self.module, "online head")
        encoder = first_name(self.module, "online encoder")
        self.viewed = encoder or head or online
        counterparts = self._counterparts()
        # The part whose outputs may get gradient through the predictor alone. Two different
        # encoders may be trained against each other, as in CLIP.
        self.source = target
        if target is None and has_predictor:
            self.source = head or encoder or online
        roles = PARTS["target head"] + PARTS["target encoder"]
        if not has_predictor and target not in [*roles, *counterparts]:
            self.source = None

        for name in {online, target, self.source, self.viewed} - {None}:
            submodule = part(self.module, name)
            self._hook(submodule.register_forward_hook, submodule, partial(self._on_call, name))
        for target_name, online_name in counterparts.items():
            submodule = part(self.module, target_name)
            compare = partial(self._compare_weights, target_name, online_name)
            self._hook(submodule.register_forward_pre_hook, submodule, compare)
        predictor = set(_parameters(self.online))
        self.trains_predictor = has_predictor and bool(predictor)
        for parameter in _parameters(self.module):
            if self.trains_predictor and parameter.requires_grad:
                record = partial(self._on_gradient, parameter in predictor)
                self._removers.append(parameter.register_hook(record).remove)

    def _counterparts(self) -> dict[str, str]:
        """Return the online part of each target whose parameters have the same shapes."""
        online, target, _ = self.branches
        names = [] if target is None else [(online, target)]
        for kind in ("head", "encoder"):
            names += product(PARTS[f"online {kind}"], PARTS[f"target {kind}"])
        counterparts = {}
        for online_name, target_name in names:
            shapes = self._shapes(online_name)
            if shapes and shapes == self._shapes(target_name):
                counterparts.setdefault(target_name, online_name)
        return counterparts

    def _shapes(self, name: str) -> list[torch.Size]:
        return [x.shape for x in _parameters(part(self.module, name))]

    def _on_gradient(self, in_predictor: bool, gradient: Tensor) -> None:
        self._norms[in_predictor].append(gradient.norm())

    def _on_call(self, name: str, args: Any, kwargs: Any, output: Any) -> None:
        """Check a call of a part."""
        online, target, has_predictor = self.branches
        x, y = first_tensor((args, kwargs)), first_tensor(output)
        if x is None or y is None:
            return
        if name in (online, target) and has_rows(y) and len(y) > 1:
            self._signs["constant", name].append(_repeats(y, len(y)))
        if name == self.source:
            self._add_gradients(y)
        if name == online and has_predictor:
            if target is None:
                self._add_gradients(x)
            self._follow(y)
            if target is None or self._shapes(target):  # otherwise the target has a filter
                self._signs["asymmetry", name].append(_equal([x], [y]))
        # A loop may call a network on the same view with and without gradients.
        if name == self.viewed and torch.is_grad_enabled():
            tensors = [x for x in tree_leaves((args, kwargs, output)) if isinstance(x, Tensor)]
            if self._first_call:
                self._same_views.append(_equal(tensors, self._first_call))
            else:
                self._first_call = [x.detach().clone() for x in tensors]
                self._same_views.append(_repeats(x, self.views) and _repeats(y, self.views))

    def _add_gradients(self, x: Tensor) -> None:
        """Record the gradients that arrive at an output."""
        edge = x.grad_fn, x.output_nr
        if x.grad_fn is not None and edge not in self._gradients:
            self._gradients[edge] = []
            x.register_hook(self._gradients[edge].append)

    def _follow(self, output: Tensor) -> None:
        """Record the gradients that come from the predictor's output."""
        self._gradients.pop((output.grad_fn, output.output_nr), None)  # it may be its input
        nodes: list[Any] = [output.grad_fn]
        while nodes:
            node = nodes.pop()
            if node is None or node in self._followed:
                continue
            self._followed.add(node)
            for index, edge in enumerate(node.next_functions):
                nodes.append(edge[0])
                if edge in self._gradients:
                    node.register_hook(partial(_subtract, self._gradients[edge], index))

    def _compare_weights(self, target_name: str, online_name: str, *call: Any) -> None:
        """Compare weights at a call of the target, in whatever order the loop updates them."""
        target = _sample(part(self.module, target_name))
        online = _sample(part(self.module, online_name))
        before, first_target = self._weights.setdefault(target_name, (online, target))
        if ((online - before).abs() > VISIBLE * before.abs()).any():
            self._weights[target_name] = online, first_target
            self._signs["frozen target", target_name].append(torch.equal(target, first_target))
            self._signs["copied target", target_name].append(torch.equal(target, online))


def _parameters(module: nn.Module | None) -> list[nn.Parameter]:
    """Return the parameters that are neither lazy nor shards of a tensor."""
    if module is None:
        return []
    return [x for x in module.parameters() if type(x) is nn.Parameter]


def _sample(module: nn.Module | None) -> Tensor:
    """Return up to 100 weights of each parameter."""
    return torch.cat([x.detach().flatten()[:100].cpu().double() for x in _parameters(module)])


def _subtract(gradients: list[Tensor], index: int, grad_inputs: Any, grad_outputs: Any) -> None:
    if grad_inputs[index] is not None:
        gradients.append(-grad_inputs[index])


def _has_rest(gradients: list[Tensor]) -> bool:
    """Return whether the sum of gradients is larger than its rounding error."""
    if not gradients:
        return False
    size = sum(float(x.float().norm()) for x in gradients)
    rounding = len(gradients) * torch.finfo(gradients[0].dtype).eps * size
    return float(sum(gradients).float().norm()) > rounding


def _equal(a: list[Tensor], b: list[Tensor]) -> bool:
    return len(a) == len(b) and all(map(torch.equal, a, b))


def _repeats(x: Tensor, n: int) -> bool:
    """Return whether a batch consists of n equal parts."""
    first, *others = torch.atleast_1d(x).chunk(n)
    return len(others) == n - 1 and all(torch.equal(first, other) for other in others)
