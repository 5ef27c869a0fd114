"""What a whole training step costs: time and peak memory of every method and filter.

The models are the runs' own, with their training step and optimiser; one process runs them in
turn, so that a noisy machine is noisy for all of them.
"""

import statistics
from collections.abc import Sequence

import torch
from omegaconf import OmegaConf

from rdm_solo import cli, methods
from rdm_solo.bench.memory import peak_bytes
from rdm_solo.bench.timing import interleaved, ratio
from rdm_solo.methods import optimizers
from rdm_solo.methods.chosen_filter import shipped_filters
from rdm_solo.methods.descriptions import METHODS
from rdm_solo.methods.solo_learn import complete
from rdm_solo.train import checks

CONTESTANTS = [
    (described.name, name)
    for described in METHODS.values()
    for name in ([""] if described.no_filter else shipped_filters())
]
REFERENCE = CONTESTANTS[0]  # SimSiam with its own predictor


class Step:
    """A method's whole training step on one batch of noise: forward, backward, optimiser."""

    def __init__(self, device: str, *overrides: str) -> None:
        self.cfg = cli.compose("config", ["dataset=synthetic", "batch_size=64", *overrides])
        checks.check(self.cfg)
        OmegaConf.set_struct(self.cfg, False)
        self.cfg.dataset.num_large_crops, self.cfg.dataset.num_small_crops = 2, 0
        torch.manual_seed(0)
        self.model = methods.prepare(methods.build(self.cfg), self.cfg).to(device).train()
        complete(self.model)
        # Outside a Trainer: logging and the epoch's number have nobody to ask.
        self.model.log = self.model.log_dict = lambda *args, **kwargs: None
        groups = self.model.learnable_params
        self.optimizer = optimizers.configure(groups, self.cfg, steps=1000)["optimizer"]
        batch, size = self.cfg.batch_size, self.cfg.dataset.image_size
        views = [torch.randn(batch, 3, size, size, device=device) for _ in range(2)]
        labels = torch.randint(10, (batch,), device=device)
        self.data = torch.arange(batch, device=device), views, labels

    def __call__(self) -> torch.Tensor:
        """The step's loss."""
        loss = self.model.training_step(self.data, 0)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        # The momentum encoder follows, as it does at the end of every step.
        for pair in getattr(self.model, "momentum_pairs", []):
            self.model.momentum_updater.update(*pair)
        return loss.detach()

    def resident(self) -> int:
        """Bytes of parameters, buffers and the optimiser's state."""
        state = [x for s in self.optimizer.state.values() for x in s.values()]
        held = [*self.model.parameters(), *self.model.buffers(), *state]
        return sum(x.nbytes for x in held if isinstance(x, torch.Tensor))


def bench_cost(runs: int, device: str, overrides: Sequence[str]) -> None:
    """Each method and filter: median step time and peak memory, over those of the reference."""
    steps = {}
    for method, name in CONTESTANTS:
        own = [f"method={method}", *([f"filter={name}"] if name else [])]
        steps[method, name] = Step(device, *own, *overrides)
    seconds = dict(zip(steps, interleaved(list(steps.values()), runs, device)))
    memory = {}
    for key, step in steps.items():
        step.optimizer.zero_grad(set_to_none=True)  # the step's own gradients count, not the last's
        memory[key] = step.resident() + peak_bytes(step, device)
    print(
        f"{'method':<12}{'filter':<18}{'step':>10}{'/ SimSiam':>11}{'spread':>14}{'/ own':>8}"
        f"{'memory':>12}{'/ SimSiam':>11}{'/ own':>8}"
    )
    for key in steps:
        method, name = key
        own_predictor = (method, "learnable") if name else key
        middle, low, high = ratio(seconds[key], seconds[REFERENCE])
        beside = ratio(seconds[key], seconds[own_predictor])[0]
        print(
            f"{method:<12}{name:<18}{statistics.median(seconds[key]) * 1e3:>8.1f}ms"
            f"{middle:>11.3f}{f'{low:.2f}..{high:.2f}':>14}{beside:>8.3f}"
            f"{memory[key] / 2**20:>9.1f}MiB{memory[key] / memory[REFERENCE]:>11.3f}"
            f"{memory[key] / memory[own_predictor]:>8.3f}"
        )
