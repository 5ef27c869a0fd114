"""By how much an optimizer step changes a network's weights."""

import torch
from torch import Tensor, nn

# In the first steps of healthy runs (ten loops, and SimSiam at its highest useful rates), a step
# changed the encoder's weights by at most 2.7 % of their norm. With a learning rate 100 times too
# high it was 13 to 130 %. The bound lies in the middle of the logarithms.
LARGE = 0.06
SAMPLE = 1000  # weights of each parameter


class StepSize:
    """Measure the change of a module's trainable weights, relative to their norm.

    >>> layer = nn.Linear(2, 2)
    >>> steps = StepSize(layer)
    >>> steps.change()
    0.0
    >>> with torch.no_grad():
    ...     for x in layer.parameters():
    ...         x *= 1.5
    >>> round(steps.change(), 4)
    0.5
    """

    def __init__(self, module: nn.Module) -> None:
        self.parameters = [x for x in module.parameters() if x.requires_grad]
        self._weights: list[Tensor] = []

    def change(self) -> float:
        """Return the change since the last call, estimated from a part of each parameter."""
        weights = []
        for parameter in self.parameters:
            sample = parameter.detach().flatten()[:SAMPLE].float()
            scale = (parameter.numel() / max(1, len(sample))) ** 0.5
            weights.append(scale * sample)
        before, self._weights = self._weights, weights
        if not before:
            return 0.0
        norm = torch.cat(before).norm()
        change = (torch.cat(weights) - torch.cat(before)).norm()
        return float(change / norm) if norm > 0 else 0.0
