"""A backbone's training passes as CUDA graphs.

On a fast GPU, launching a small network's kernels takes longer than computing them
(benchmarks/gpu.md). A CUDA graph launches all kernels of a pass at once.
"""

import logging
import weakref
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.func import functional_call

from rdm_solo.ground.devices import capturing, side_stream
from rdm_solo.ground.errors import UserError, first_line

log = logging.getLogger("rdm_solo")

DEVICE = "cuda"
# Passes before a capture, in which libraries allocate memory and cuDNN chooses its algorithms.
WARM_UPS = 3
HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


@dataclass
class Passes:
    """A forward and a backward pass as graphs, and the tensors that they read and write."""

    images: Tensor
    weights: list[Tensor]
    forward: torch.cuda.CUDAGraph
    output: Tensor
    output_gradient: Tensor
    backward: torch.cuda.CUDAGraph
    gradients: list[Tensor]  # of the weights
    pending: weakref.ref[Any] | None = None  # autograd's node of a forward pass without backward

    def is_free(self) -> bool:
        """Return whether the activations of the last forward pass can be overwritten."""
        return self.pending is None or self.pending() is None


class ReplayedForward:
    """A backbone's ``forward`` that replays graphs in training.

    A replay overwrites the activations of the graph's previous replay, so each view of a step has
    its own graphs. They are captured when a view first needs them.

    This is the original ``forward`` in evaluation, without gradients, for images that require a
    gradient, and if a layer has hooks, which a graph would not call.
    """

    def __init__(self, backbone: nn.Module) -> None:
        self._original = OriginalForward(backbone)
        self._layers = list(backbone.modules())[1:]  # without the backbone itself
        self._has_warned = False
        # By the images' shape and dtype, and autocast.
        self._passes: dict[tuple[Any, ...], list[Passes]] = defaultdict(list)

    def __call__(self, x: Tensor) -> Any:
        if not self._can_replay(x):
            return self._original(x)
        captured = self._passes[x.shape, x.dtype, torch.is_autocast_enabled(DEVICE)]
        passes = next(filter(Passes.is_free, captured), None)
        if passes is None:
            passes = self._capture(x)
            captured.append(passes)
        return _Replay.apply(passes, x, *passes.weights)

    def _can_replay(self, x: Tensor) -> bool:
        if not self._original.backbone.training or not torch.is_grad_enabled():
            return False
        if x.device.type != DEVICE or x.requires_grad:
            return False
        if not any(getattr(layer, hooks) for layer in self._layers for hooks in HOOKS):
            return True
        if not self._has_warned:
            self._has_warned = True
            log.warning(
                "warning: a layer of the backbone has a hook, so backbone.cuda_graph has no effect."
            )
        return False

    def _capture(self, x: Tensor) -> Passes:
        """Capture the passes for images like x, then restore buffers and the random state."""
        buffers = list(self._original.buffers())
        values = [buffer.clone() for buffer in buffers]
        # With autocast's cache, the graph would reuse the casts of the weights as they are now.
        enabled = torch.is_autocast_enabled(DEVICE)
        uncached = torch.autocast(DEVICE, enabled=enabled, cache_enabled=False)
        try:
            with torch.random.fork_rng([x.device]), uncached:
                return capture_passes(self._original, x)
        finally:
            for buffer, value in zip(buffers, values):
                buffer.copy_(value)


class OriginalForward(nn.Module):
    """Calls a backbone's original ``forward``, without the hooks of the backbone itself."""

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone
        self._forward = backbone.forward

    def forward(self, x: Tensor) -> Any:
        return self._forward(x)

    def trained_weights(self) -> dict[str, nn.Parameter]:
        return {name: p for name, p in self.named_parameters() if p.requires_grad}


def capture_passes(original: OriginalForward, x: Tensor) -> Passes:
    """Capture a forward and a backward pass for images of this shape."""
    images = x.clone()
    weights = original.trained_weights()
    aliases = own_leaves(weights)

    def forward() -> Any:
        return functional_call(original, aliases, (images,))

    def backward(output: Tensor, gradient: Tensor) -> Sequence[Tensor | None]:
        leaves = list(aliases.values())
        with torch.autocast(DEVICE, enabled=False):  # as in a training step
            return torch.autograd.grad(output, leaves, gradient, allow_unused=True)

    with side_stream(x.device) as stream:
        for _ in range(WARM_UPS):
            output = forward()
            output_gradient = torch.ones_like(output)
            backward(output, output_gradient)
    forward_graph, backward_graph = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    try:
        with capturing(forward_graph, stream):
            output = forward()
        with capturing(backward_graph, stream, forward_graph.pool()):
            gradients = backward(output, output_gradient)
    except RuntimeError as error:
        cause: BaseException = error
        while cause.__context__ is not None:  # leaving a failed capture raises a second error
            cause = cause.__context__
        raise UserError(
            f"the backbone cannot be captured as a CUDA graph ({first_line(cause)}): pass "
            "backbone.cuda_graph=false."
        ) from error
    return Passes(
        images=images,
        weights=[weight for weight, g in zip(weights.values(), gradients) if g is not None],
        forward=forward_graph,
        output=output.detach(),
        output_gradient=output_gradient,
        backward=backward_graph,
        gradients=[g for g in gradients if g is not None],
    )


def own_leaves(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return other leaves of autograd in the same memory.

    Autograd sums a leaf's gradients on the stream on which the leaf's node was created. The
    training step creates the weights' own nodes on the default stream, which cannot be captured.
    """
    return {name: weight.detach().requires_grad_() for name, weight in weights.items()}


class _Replay(torch.autograd.Function):
    """Replay both passes. Results are copied, because the next replay overwrites the graph's."""

    @staticmethod
    def forward(ctx: Any, passes: Passes, x: Tensor, *weights: Tensor) -> Tensor:
        passes.images.copy_(x)
        passes.forward.replay()
        passes.pending = weakref.ref(ctx)
        ctx.passes = passes
        return passes.output.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        passes: Passes = ctx.passes
        if passes.pending is None or passes.pending() is not ctx:
            raise RuntimeError(
                "with backbone.cuda_graph=true, backward() can run only once per output of the "
                "backbone: pass backbone.cuda_graph=false."
            )
        passes.output_gradient.copy_(gradient)
        passes.backward.replay()
        passes.pending = None
        copies = [torch.empty_like(static) for static in passes.gradients]
        torch._foreach_copy_(copies, passes.gradients)
        return None, None, *copies
