"""A backbone's training passes as CUDA graphs.

On a fast GPU, launching a small network's kernels takes longer than computing them
(benchmarks/gpu.md). A CUDA graph launches all kernels of a pass at once.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.func import functional_call

from rdm_solo.ground.devices import capturing
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
    weights: Sequence[Tensor]
    forward: torch.cuda.CUDAGraph
    output: Tensor
    output_gradient: Tensor
    backward: torch.cuda.CUDAGraph
    gradients: Sequence[Tensor]  # of the weights
    replays: int = 0  # of either graph


class ReplayedForward:
    """A backbone's ``forward`` that replays graphs in training.

    The next replay overwrites the activations that a backward pass needs, so each view of a step
    has its own graphs. They are captured when a view of this shape first needs them.

    In evaluation, or if a layer has hooks, which a graph would not call, this is the original
    ``forward``.
    """

    def __init__(self, backbone: nn.Module) -> None:
        self._original = Original(backbone)
        _, _, *self._layers = self._original.modules()  # without the backbone itself
        self._has_warned = False
        self._passes: dict[tuple[Any, ...], Passes] = {}
        self._views = 0  # calls since the last backward pass

    def __call__(self, x: Tensor) -> Any:
        if not self._can_replay(x):
            return self._original(x)
        key = self._views, x.shape, x.dtype, torch.is_autocast_enabled(DEVICE)
        if key not in self._passes:
            self._passes[key] = self._capture(x)
        self._views += 1
        passes = self._passes[key]
        output = _Replay.apply(passes, x, *passes.weights)
        output.register_hook(self._on_backward)
        return output

    def _on_backward(self, gradient: Tensor) -> None:
        """Start with the first graphs again: the next call belongs to another step."""
        self._views = 0

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
        """Capture the passes for such images; buffers and random numbers stay as they are."""
        buffers = list(self._original.buffers())
        values = [buffer.clone() for buffer in buffers]
        # A cached cast of a weight would keep the value that the weight has now.
        enabled = torch.is_autocast_enabled(DEVICE)
        uncached = torch.autocast(DEVICE, enabled=enabled, cache_enabled=False)
        try:
            with torch.random.fork_rng([x.device]), uncached:
                return capture_passes(self._original, x)
        finally:
            for buffer, value in zip(buffers, values):
                buffer.copy_(value)


class Original(nn.Module):
    """Calls a backbone's original ``forward``, without the hooks of the backbone itself."""

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone
        self._forward = backbone.forward

    def forward(self, x: Tensor) -> Any:
        return self._forward(x)

    def trained_weights(self) -> dict[str, nn.Parameter]:
        return {name: p for name, p in self.named_parameters() if p.requires_grad}


def capture_passes(original: Original, x: Tensor) -> Passes:
    """Capture a forward and a backward pass for images of this shape."""
    images = x.clone()
    weights = original.trained_weights()
    aliases = own_leaves(weights)

    def forward() -> Any:
        return functional_call(original, aliases, (images,))

    def backward(output: Tensor, gradient: Tensor) -> Sequence[Tensor | None]:
        leaves = list(aliases.values())
        return torch.autograd.grad(output, leaves, gradient, allow_unused=True)

    stream = torch.cuda.Stream(x.device)  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream(x.device))
    with torch.cuda.stream(stream):
        for _ in range(WARM_UPS):
            output = forward()
            output_gradient = torch.ones_like(output)
            backward(output, output_gradient)
    torch.cuda.current_stream(x.device).wait_stream(stream)
    first, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    try:
        with capturing(first, stream):
            output = forward()
        with capturing(second, stream, first.pool()):
            gradients = backward(output, output_gradient)
    except RuntimeError as error:
        cause: BaseException = error
        while cause.__context__ is not None:  # the last error only says that there was an earlier
            cause = cause.__context__
        raise UserError(
            f"the backbone cannot be captured as a CUDA graph ({first_line(cause)}): pass "
            "backbone.cuda_graph=false."
        ) from error
    used = [weight for weight, g in zip(weights.values(), gradients) if g is not None]
    known = [g for g in gradients if g is not None]
    return Passes(images, used, first, output.detach(), output_gradient, second, known)


def own_leaves(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return other leaves of autograd in the same memory.

    Autograd sums a leaf's gradients on the stream on which the leaf's node was created. The weights
    have nodes of the training step, on the default stream, which cannot take part in a capture.
    """
    return {name: weight.detach().requires_grad_() for name, weight in weights.items()}


class _Replay(torch.autograd.Function):
    """Replay both passes. Results are copied, because the next replay overwrites the graph's."""

    @staticmethod
    def forward(ctx: Any, passes: Passes, x: Tensor, *weights: Tensor) -> Tensor:
        passes.images.copy_(x)
        passes.forward.replay()
        passes.replays += 1
        ctx.passes, ctx.replay = passes, passes.replays
        return passes.output.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        passes: Passes = ctx.passes
        if ctx.replay != passes.replays:
            raise RuntimeError(
                "the backbone's activations are overwritten: with backbone.cuda_graph=true, the "
                "views of a step need one backward pass before the next step."
            )
        passes.output_gradient.copy_(gradient)
        passes.backward.replay()
        passes.replays += 1
        copies = [torch.empty_like(static) for static in passes.gradients]
        torch._foreach_copy_(copies, list(passes.gradients))
        return None, None, *copies
