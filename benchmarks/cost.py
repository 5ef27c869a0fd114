"""Measure the time and peak memory of a training step, for every method and filter.

The models have their own training step and optimiser, as in a run.
"""

import statistics
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from omegaconf import OmegaConf

from benchmarks.memory import peak_bytes
from benchmarks.timing import interleaved, ratio, run_command
from rdm_solo import methods
from rdm_solo.cli import arguments
from rdm_solo.methods import optimizers
from rdm_solo.methods.chosen_filter import shipped_filters
from rdm_solo.methods.descriptions import METHODS

# Pairs of a method and a filter; a method without one stands alone.
CONTESTANTS: list[tuple[str, str]] = []
for description in METHODS.values():
    names = [""] if description.no_filter else shipped_filters()
    CONTESTANTS += [(description.name, name) for name in names]
REFERENCE = CONTESTANTS[0]  # SimSiam with its own predictor


class Step:
    """A method's whole training step on one batch of noise: forward, backward, optimiser.

    ``build`` makes the model from the config; default: ours.
    """

    def __init__(
        self, device: str, *overrides: str, build: Callable[..., Any] | None = None
    ) -> None:
        self.cfg = arguments.compose("config", ["dataset=synthetic", "batch_size=64", *overrides])
        OmegaConf.set_struct(self.cfg, False)
        self.cfg.dataset.num_large_crops, self.cfg.dataset.num_small_crops = 2, 0
        torch.manual_seed(0)
        backbone = self.cfg.backbone
        build = build or methods.build
        self.model = build(self.cfg).to(device).train()
        methods.prepare(self.model, backbone.channels_last, backbone.compile)
        if hasattr(self.model, "sk_iters"):  # solo-learn adds it when training starts
            sinkhorn = sys.modules["solo.methods.swav"].SinkhornKnopp
            self.model.sk = sinkhorn(self.model.sk_iters, self.model.sk_epsilon)
        self.model.log = self.model.log_dict = lambda *args, **kwargs: None  # there is no Trainer
        groups = self.model.learnable_params
        self.optimizer = optimizers.configure(groups, self.cfg, steps=1000)["optimizer"]
        batch, size = self.cfg.batch_size, self.cfg.dataset.image_size
        views = [torch.randn(batch, 3, size, size, device=device) for _ in range(2)]
        labels = torch.randint(10, (batch,), device=device)
        self.data = torch.arange(batch, device=device), views, labels

    def __call__(self) -> torch.Tensor:
        """Take a step and return its loss."""
        loss = self.model.training_step(self.data, 0)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        # The momentum encoder is updated at the end of every step.
        for pair in getattr(self.model, "momentum_pairs", []):
            self.model.momentum_updater.update(*pair)
        return loss.detach()

    def resident(self) -> int:
        """Return the bytes of parameters, buffers and the optimiser's state."""
        tensors = [*self.model.parameters(), *self.model.buffers()]
        for state in self.optimizer.state.values():
            tensors += [value for value in state.values() if isinstance(value, torch.Tensor)]
        return sum(tensor.nbytes for tensor in tensors)


def measure(runs: int, device: str, overrides: Sequence[str]) -> None:
    """Print step time and peak memory of each method and filter, and ratios to the reference."""
    steps = {}
    for method, name in CONTESTANTS:
        options = [f"method={method}"]
        if name:
            options.append(f"filter={name}")
        steps[method, name] = Step(device, *options, *overrides)
    seconds = dict(zip(steps, interleaved(list(steps.values()), runs, device)))
    memory = {}
    for key, step in steps.items():
        step.optimizer.zero_grad(set_to_none=True)  # gradients of the previous step
        memory[key] = step.resident() + peak_bytes(step, device)
    print(
        f"{'method':<12}{'filter':<18}{'step':>10}{'/ SimSiam':>11}{'spread':>14}{'/ own':>8}"
        f"{'memory':>12}{'/ SimSiam':>11}{'/ own':>8}"
    )
    for key in steps:
        method, name = key
        own_predictor = (method, "learnable") if name else key
        milliseconds = 1e3 * statistics.median(seconds[key])
        middle, low, high = ratio(seconds[key], seconds[REFERENCE])
        of_own, _, _ = ratio(seconds[key], seconds[own_predictor])
        print(
            f"{method:<12}{name:<18}{milliseconds:>8.1f}ms{middle:>11.3f}"
            f"{f'{low:.2f}..{high:.2f}':>14}{of_own:>8.3f}{memory[key] / 2**20:>9.1f}MiB"
            f"{memory[key] / memory[REFERENCE]:>11.3f}{memory[key] / memory[own_predictor]:>8.3f}"
        )


if __name__ == "__main__":
    run_command("cost", "time and peak memory of a step of every method and filter", measure)
