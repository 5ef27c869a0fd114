"""Measure by how much an optimizer step changes a network's weights."""

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from rdm_solo.observe.branches import Hook

# In the first steps of healthy runs (ten loops, and SimSiam at its highest useful rates), a step
# changed the encoder's weights by at most 2.7 % of their norm. With a learning rate 100 times too
# high it was 13 to 130 %. The bound lies in the middle of the logarithms.
LARGE = 0.06
SAMPLE = 1000  # weights of each parameter


class StepSize:
    """Measure the change of a module's weights, relative to their norm.

    The weights before the first step are those of the next forward pass, so a user can still load
    others.

    >>> layer = nn.Linear(2, 2)
    >>> steps = StepSize(layer)
    >>> output = layer(torch.ones(1, 2))
    >>> with torch.no_grad():
    ...     for x in layer.parameters():
    ...         x *= 1.5
    >>> round(steps.change(), 4)
    0.5
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self._weights: Tensor | None = None
        self._handle: RemovableHandle | None = None
        self.begin()

    def begin(self) -> None:
        """Compare the next step with the weights of the next forward pass."""
        self.end()
        self._weights = None
        hook = Hook(self.module, self._on_forward)
        self._handle = self.module.register_forward_pre_hook(hook)

    def _on_forward(self, *call: object) -> None:
        if self._weights is None and self.module.training:
            self._weights = self._sample()

    def change(self) -> float:
        """Return the change since the last call, or 0 if there was no forward pass before."""
        self.end()
        before = self._weights
        self._weights = self._sample()
        if before is None:  # a method of the module is called instead of its forward
            return 0.0
        norm = before.norm()
        return float((self._weights - before).norm() / norm) if norm > 0 else 0.0

    def end(self) -> None:
        """Remove the hook."""
        if self._handle is not None:
            self._handle.remove()

    def _sample(self) -> Tensor:
        """Return a part of each parameter, scaled to the norm of all of it."""
        samples = []
        for parameter in self.module.parameters():
            if type(parameter) is not nn.Parameter:  # lazy, or a shard of a tensor
                continue
            count = min(SAMPLE, parameter.numel())
            # The first ones in memory: flatten() would copy a tensor that is channels-last.
            sample = parameter.detach().as_strided((count,), (1,))
            scale = (parameter.numel() / max(1, count)) ** 0.5
            samples.append(scale * sample.float())
        return torch.cat([sample.to(samples[0].device) for sample in samples] or [torch.empty(0)])
