"""Checks of a training loop's structure in its first steps."""

from collections import defaultdict
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rdm_solo.observe.branches import Branches
from rdm_solo.observe.outputs import first_tensor, has_rows
from rdm_solo.observe.parts import PARTS, ModuleObserver, first_name, part, require_part

STEPS = 10
# If an online weight changes by this fraction, its moving average with a momentum of up to 0.9999
# changes in float32 as well.
VISIBLE = 1e-3
# Differences that count as rounding, in units of eps and of the largest output: MKL's AVX2 and SSE
# kernels give equal rows of a batch different bits. Measured on both, with MLPs of 1 to 6 layers:
# equal images at most 7.4, and equal views at most 117, because batch norm divides by the small
# spread of nearly dead units. Outputs of different images are further apart than EQUAL_IMAGES: in
# fresh networks by 4e5 (ResNet-18, ResNet-50, ViT) and 3,600 (an MLP of 12 layers), with biases of
# standard deviation 10 by 38, and only by 0.7 to 3 if 12 layers have biases of 100 and more.
# EQUAL_VIEWS can be larger since their inputs are compared exactly. Under autocast to bfloat16 or
# float16 equal rows had equal bits, and those of different images are 0.2 eps apart.
EQUAL_IMAGES = 16
EQUAL_VIEWS = 1000
CHECKS = {
    "stop-gradient": "gradient reaches the target at {!r} without passing through a predictor: "
    "call detach() on the target in the loss, unless negatives or a variance term of your loss "
    "prevent collapse (then pass checks=False).",
    "asymmetry": "the predictor {!r} returns its input, so both branches have the same outputs: "
    "use a network with weights, such as two linear layers with a ReLU between them.",
    "predictor": "the predictor {!r} does not move although the rest does: pass its parameters to "
    "the optimizer, let them require gradients, and do not detach its output.",
    "frozen encoder": "the weights of {!r} do not change although the rest does, so its features "
    "stay as they are: pass its parameters to the optimizer, let them require gradients, and do "
    "not detach its output, unless it is meant to be frozen.",
    "frozen target": "the target {!r} does not move although the online branch does: update it "
    "after each optimizer step with a momentum below 1, unless the teacher is meant to be frozen "
    "or to be updated less often.",
    "copied target": "the target {!r} always has the online branch's weights: make it a deepcopy, "
    "and update it with a momentum above 0.",
    "views": "{!r} receives the same views of the images in each call: draw a random augmentation "
    "for each view.",
    "views in a batch": "{!r} receives batches whose views are identical: draw a random "
    "augmentation for each view.",
    "constant": "{!r} returns the same output for all images: look for a zero layer or a "
    "final ReLU that outputs only zeros.",
}


class Finding(NamedTuple):
    """A mistake in the loop: the key in ``CHECKS``, the part, and a sentence with the remedy."""

    check: str
    part: str
    text: str
    is_certain: bool = True  # False if healthy loops have it as well, as in distillation


class LoopChecks(ModuleObserver):
    """Check the structure of a training loop in its first ``STEPS`` steps, then remove all hooks.

    The hooks change neither outputs nor gradients. Call :meth:`after_step` after each forward and
    backward. ``views`` is the number of views of each image. ``backbone`` is the name of the
    encoder, which is otherwise found by name.

    A missing ``detach()`` is found without knowing the loss: the total gradient at the target's
    output, minus the part that comes through the predictor, must be zero.

    >>> model = nn.ModuleDict({"projector": nn.Linear(4, 3), "predictor": nn.Linear(3, 3)})
    >>> checks = LoopChecks(model, Branches("predictor", None, predictor=True))
    >>> z1, z2 = map(model["projector"], torch.randn(2, 8, 4))
    >>> (model["predictor"](z1) - z2).square().mean().backward()  # z2.detach() is missing
    >>> [finding.check for finding in checks.after_step()]
    ['stop-gradient']
    """

    def __init__(
        self,
        module: nn.Module,
        branches: Branches,
        views: int | None = None,
        backbone: str | None = None,
    ) -> None:
        super().__init__(module, branches)
        self.views = views or 2
        self.steps = 0
        self.recording = True
        # For each check and part, one bool per call or step; all True makes a finding.
        self._signs: dict[tuple[str, str], list[bool]] = defaultdict(list)
        self._weights: dict[str, tuple[Tensor, Tensor]] = {}
        self._begin_step()

        online, target, has_predictor = branches
        head = first_name(module, "online head")
        encoder = first_name(module, "online encoder")
        self.viewed = encoder or head or online
        self.pairs = self._find_pairs()
        # This part's outputs may receive gradient only through the predictor. Two different
        # encoders that are trained against each other, as in CLIP, have no such part.
        self.source = ""
        if has_predictor or target in self.pairs:
            self.source = target or head or encoder or online
        if has_predictor and self._parameters(online):
            self.pairs[online] = self.viewed
        self.encoder = backbone or encoder
        moving = head or online
        if self.encoder and self.encoder != moving and self._parameters(self.encoder):
            self.pairs.setdefault(self.encoder, moving)
        names = {online, target, self.viewed, self.source, *self.pairs}
        for name in filter(None, names):
            submodule = require_part(module, "part", name)
            self._hook(submodule.register_forward_hook, submodule, partial(self._on_call, name))

    def _begin_step(self) -> None:
        # For each output, by (grad_fn, output_nr): its total gradient, and the gradients that come
        # through the predictor with a minus sign. A sum that is not zero bypasses the predictor.
        self._gradients: dict[Any, list[Tensor]] = {}
        self._followed: set[Any] = set()  # nodes of the graph
        self._first_call: list[Tensor] = []  # of the part that receives the views

    def after_step(self) -> list[Finding]:
        """Return the new findings. After the last step, ``recording`` is False."""
        keys = []
        if any(map(_bypasses_predictor, filter(None, self._gradients.values()))):
            keys.append(("stop-gradient", self.source))
            self.source = ""
        self._begin_step()
        self.steps += 1
        if self.steps == STEPS:
            self.detach()
            self.recording = False
            for key, signs in self._signs.items():
                if len(signs) > 1 and all(signs):
                    keys.append(key)
        findings = []
        for check, name in keys:
            text = CHECKS[check].format(name)
            is_certain = check not in ("frozen encoder", "frozen target")
            findings.append(Finding(check, name, text, is_certain))
        return findings

    def _find_pairs(self) -> dict[str, str]:
        """Return the online part of each target whose parameters have the same shapes."""
        online, target, _ = self.branches
        names = [(online, target or "")]
        for kind in ("head", "encoder"):
            names += product(PARTS[f"online {kind}"], PARTS[f"target {kind}"])
        pairs: dict[str, str] = {}
        for online, target in names:
            shapes = [x.shape for x in self._parameters(online)]
            target_shapes = [x.shape for x in self._parameters(target)]
            if shapes and shapes == target_shapes:
                pairs.setdefault(target, online)
        return pairs

    def _parameters(self, name: str) -> list[nn.Parameter]:
        """Return a part's parameters that are neither lazy nor split over devices."""
        submodule = part(self.module, name)
        if submodule is None:
            return []
        return [x for x in submodule.parameters() if type(x) is nn.Parameter]

    def _on_call(self, name: str, args: Any, kwargs: Any, output: Any) -> None:
        """Check a call of a part."""
        online, target, has_predictor = self.branches
        x = first_tensor((args, kwargs))
        y = first_tensor(output)
        if x is None or y is None:
            return
        if name in self.pairs:
            self._compare_weights(name)
        if name in (online, target) and has_rows(y) and len(y) > 1:
            self._signs["constant", name].append(_close(y, y[:1].expand_as(y), EQUAL_IMAGES))
        if name == self.source:
            self._add_output(y)
        if name == online and has_predictor:
            if target is None:  # it is the predictor's input
                self._add_output(x)
            self._follow(y)
            if target is None or self._parameters(target):  # otherwise the target is a filter
                self._signs["asymmetry", name].append(_equal(x, y))
        # A loop may call a network on the same view with and without gradients.
        if name == self.viewed and self.views > 1 and torch.is_grad_enabled():
            self._compare_views([x.detach(), y.detach()])

    def _compare_views(self, call: list[Tensor]) -> None:
        """Compare a call with the step's first one, and in the first its views with each other."""
        check = "views"
        others = self._first_call
        if not others:
            self._first_call = [x.clone() for x in call]
            check = "views in a batch"
            # roll() moves the flattened tensor, here by the numbers of one view.
            others = [x.roll(x.numel() // self.views) for x in call]
        (x, y), (other_x, other_y) = call, others
        same = _equal(x, other_x) and _close(y, other_y, EQUAL_VIEWS)
        self._signs[check, self.viewed].append(same)

    def _add_output(self, x: Tensor) -> None:
        """Record the gradients that arrive at an output."""
        edge = x.grad_fn, x.output_nr
        if self.source and x.grad_fn is not None and edge not in self._gradients:
            self._gradients[edge] = []
            x.register_hook(self._gradients[edge].append)  # type: ignore[no-untyped-call]

    def _follow(self, output: Tensor) -> None:
        """Record the gradients that come from the predictor's output."""
        self._gradients.pop((output.grad_fn, output.output_nr), None)  # it returned its input
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

    def _compare_weights(self, name: str) -> None:
        """Compare weights at a call, because loops update the target before or after the step."""
        weights = self._sample(name)
        online = self._sample(self.pairs[name])
        first, before = self._weights.setdefault(name, (weights, online))
        if online.shape != before.shape:  # lazy layers got their weights after the first call
            return
        change = (online - before).abs()
        if (change > VISIBLE * before.abs()).any():
            self._weights[name] = first, online
            check = "frozen target"
            if name == self.branches.online:
                check = "predictor"
            elif name == self.encoder:
                check = "frozen encoder"
            self._signs[check, name].append(torch.equal(weights, first))
            self._signs["copied target", name].append(torch.equal(weights, online))

    def _sample(self, name: str) -> Tensor:
        """Return up to 100 weights from the first row of each parameter."""
        rows = [torch.empty(0)]
        for x in self._parameters(name):
            row = x.detach()
            if row.ndim > 1:  # flatten() would copy all of a channels_last parameter
                row = row[:1]
            rows.append(row.flatten()[:100])
        device = rows[-1].device
        return torch.cat([row.to(device) for row in rows]).cpu().double()


def _subtract(gradients: list[Tensor], index: int, grad_inputs: Any, grad_outputs: Any) -> None:
    if grad_inputs[index] is not None:
        gradients.append(-grad_inputs[index])


def _bypasses_predictor(gradients: list[Tensor]) -> bool:
    """Return whether the sum of gradients is larger than its rounding."""
    stacked = torch.stack(gradients)
    rounding = len(stacked) * torch.finfo(stacked.dtype).eps * stacked.abs().sum(0)
    return bool((stacked.sum(0).abs() > rounding).any())


def _equal(a: Tensor, b: Tensor) -> bool:
    return a.device == b.device and torch.equal(a, b)


@torch.no_grad()  # or checkpointing would count tensors that only the first forward saves
def _close(a: Tensor, b: Tensor, rounding: int) -> bool:
    """Return whether outputs are equal or, in float32 and float64, differ by rounding."""
    if _equal(a, b):
        return True
    if a.device != b.device or a.shape != b.shape:
        return False
    if b.dtype not in (torch.float32, torch.float64):
        return False
    bound = rounding * torch.finfo(b.dtype).eps * b.abs().max()
    return bool(((a - b).abs() <= bound).all())
