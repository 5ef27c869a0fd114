"""Measure the time of the predictor, or of a filter in its place, as a share of a SimSiam step."""

import statistics
from collections.abc import Callable, Sequence

import torch
from torch import nn

from benchmarks.cost import Step
from benchmarks.filters import timed_pass
from benchmarks.timing import interleaved, ratio, run_command
from rdm_solo.filters import SpectralFilter


def measure(runs: int, device: str, overrides: Sequence[str]) -> None:
    """Print the time of each head's forward and backward pass as a share of a step without it."""
    step = Step(device, "method=simsiam", "filter=identity", *overrides)
    predictor = Step(device, "method=simsiam", "filter=learnable", *overrides).model.predictor
    optimizer = torch.optim.SGD(predictor.parameters(), lr=0.1, momentum=0.9)
    batch, k = step.cfg.batch_size, step.model.projector[-1].num_features
    views = [torch.randn(batch, k, device=device) for _ in range(2)]

    def head(module: nn.Module, online: bool) -> Callable[[], None]:
        passes = [timed_pass(module, z, online) for z in views]

        def run() -> None:
            for of_view in passes:
                of_view()
            if module is predictor:
                optimizer.step()
                optimizer.zero_grad()

        return run

    heads = {
        "learnable predictor": head(predictor, online=True),
        "online filter": head(SpectralFilter("online", "log1p"), online=True),
        "target filter": head(SpectralFilter("target", "pow", p=-0.5), online=False),
    }
    base, *seconds = interleaved([step, *heads.values()], runs, device)
    size = step.cfg.dataset.image_size
    print(f"step without a head, batch {batch}, {size} px: {statistics.median(base) * 1e3:.0f} ms")
    for label, times in zip(heads, seconds):
        share = ratio(times, base)[0]
        print(f"{label:<20}{statistics.median(times) * 1e3:>9.2f} ms{share:>9.2%} of it")


if __name__ == "__main__":
    run_command("step", "the share of a predictor or a filter in a SimSiam step", measure)
