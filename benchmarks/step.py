"""Measure the time of the predictor, or of a filter in its place, as a share of a SimSiam step."""

import statistics
from collections.abc import Callable, Sequence

import torch
from torch import nn

from benchmarks.cost import Step
from benchmarks.timing import interleaved, parse, parser, ratio
from rdm_solo.filters import SpectralFilter


def measure(runs: int, device: str, overrides: Sequence[str]) -> None:
    """Print the time of each head's forward and backward pass as a share of a step without it."""
    step = Step(device, "method=simsiam", "filter=identity", *overrides)
    predictor = Step(device, "method=simsiam", "filter=learnable", *overrides).model.predictor
    optimizer = torch.optim.SGD(predictor.parameters(), lr=0.1, momentum=0.9)
    batch, k = step.cfg.batch_size, step.model.projector[-1].num_features
    z = [torch.randn(batch, k, device=device) for _ in range(2)]
    grad = torch.randn(batch, k, device=device)

    def head(module: nn.Module, online: bool) -> Callable[[], None]:
        def run() -> None:
            for features in z:
                out = module(features.detach().requires_grad_(online))
                if online:
                    out.backward(grad)
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


def main() -> None:
    description = "the share of a predictor or a filter in a SimSiam step"
    options = parse(parser("step", description, overrides=True))
    measure(options.runs, options.device, options.overrides)


if __name__ == "__main__":
    main()
