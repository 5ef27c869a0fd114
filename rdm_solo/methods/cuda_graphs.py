"""A backbone's training passes as CUDA graphs.

On a fast GPU, launching a small network's kernels takes longer than computing them
(benchmarks/gpu.md). A CUDA graph launches all kernels of a pass at once.
"""

import gc
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.func import functional_call

from rdm_solo.ground.errors import UserError, first_line

# Passes before a capture, in which libraries allocate memory and cuDNN chooses its algorithms.
WARM_UPS = 3
HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


class Passes(NamedTuple):
    """A forward and a backward pass as graphs, and the tensors that they read and write."""

    images: Tensor
    weights: Sequence[Tensor]
    forward: torch.cuda.CUDAGraph
    output: Tensor
    output_gradient: Tensor
    backward: torch.cuda.CUDAGraph
    gradients: Sequence[Tensor]  # of the weights


class ReplayedForward:
    """A backbone's ``forward`` that replays graphs in training.

    A graph keeps the activations of its forward pass until its backward pass. So each view of a
    step has its own graphs. They are captured when a view of this shape first needs them.

    In evaluation, or if a layer has hooks, which a graph would not call, this is the original
    ``forward``.
    """

    def __init__(self, backbone: nn.Module) -> None:
        self._original = Original(backbone)
        _, _, *self._layers = self._original.modules()  # without the backbone itself
        self._passes: dict[tuple[Any, ...], Passes] = {}
        self._views = 0  # calls since the last backward pass

    def __call__(self, x: Tensor) -> Any:
        if not self._can_replay(x):
            return self._original(x)
        key = self._views, x.shape, x.dtype
        if key not in self._passes:
            self._passes[key] = self._capture(x)
        passes = self._passes[key]
        self._views += 1
        output = _Replay.apply(passes, x, *passes.weights)
        output.register_hook(self._on_backward)
        return output

    def _on_backward(self, gradient: Tensor) -> None:
        """Start with the first graphs again: the next call belongs to another step."""
        self._views = 0

    def _can_replay(self, x: Tensor) -> bool:
        if not self._original.backbone.training or not torch.is_grad_enabled():
            return False
        if not x.is_cuda or x.requires_grad:
            return False
        return not any(getattr(layer, hooks) for layer in self._layers for hooks in HOOKS)

    def _capture(self, x: Tensor) -> Passes:
        """Capture the passes for such images; buffers and random numbers stay as they are."""
        gc.collect()  # graphs of an earlier run must not be destroyed during a capture
        buffers = list(self._original.buffers())
        values = [buffer.clone() for buffer in buffers]
        # A cached cast of a weight would keep the value that the weight has now.
        enabled = torch.is_autocast_enabled("cuda")
        uncached = torch.autocast("cuda", enabled=enabled, cache_enabled=False)
        try:
            with torch.random.fork_rng([x.device]), uncached:
                return _capture(self._original, x)
        except RuntimeError as error:
            raise UserError(
                f"the backbone cannot be captured as a CUDA graph ({first_line(error)}): pass "
                "backbone.cuda_graph=false."
            ) from error
        finally:
            for buffer, value in zip(buffers, values):
                buffer.copy_(value)


class Original(nn.Module):
    """A backbone with its original ``forward``; hooks on the backbone itself are not called."""

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone
        self._forward = backbone.forward

    def forward(self, x: Tensor) -> Any:
        return self._forward(x)

    def trained_weights(self) -> dict[str, nn.Parameter]:
        return {name: p for name, p in self.named_parameters() if p.requires_grad}


def _capture(original: Original, x: Tensor) -> Passes:
    """Capture a forward and a backward pass for images of this shape."""
    images = x.clone()
    weights = original.trained_weights()
    aliases = own_leaves(weights)

    def forward() -> Any:
        return functional_call(original, aliases, images)

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
    # Other threads may use the device meanwhile, such as the one that pins a loader's memory.
    options: dict[str, Any] = {"stream": stream, "capture_error_mode": "thread_local"}
    first, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(first, **options):
        output = forward()
    with torch.cuda.graph(second, pool=first.pool(), **options):
        gradients = backward(output, output_gradient)
    used = [weight for weight, g in zip(weights.values(), gradients) if g is not None]
    known = [g for g in gradients if g is not None]
    return Passes(images, used, first, output.detach(), output_gradient, second, known)


def own_leaves(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return other leaves of autograd in the same memory.

    Autograd sums a leaf's gradients on the stream on which the leaf was first used. The training
    step uses the weights on the default stream, which cannot take part in a capture.
    """
    return {name: weight.detach().requires_grad_() for name, weight in weights.items()}


class _Replay(torch.autograd.Function):
    """Replay both passes. Results are copied, because the next replay overwrites the graph's."""

    @staticmethod
    def forward(ctx: Any, passes: Passes, x: Tensor, *weights: Tensor) -> Tensor:
        ctx.passes = passes
        passes.images.copy_(x)
        passes.forward.replay()
        return passes.output.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        passes: Passes = ctx.passes
        passes.output_gradient.copy_(gradient)
        passes.backward.replay()
        copies = [torch.empty_like(static) for static in passes.gradients]
        torch._foreach_copy_(copies, list(passes.gradients))
        return None, None, *copies
