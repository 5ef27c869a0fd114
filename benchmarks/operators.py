"""Count the operators that the host launches in a training step.

On a GPU, a step of a small network takes as long as the host needs to launch its operators. The
counts are those of torch's dispatcher, which include views of a tensor, although these start no
kernel. They do not depend on the number or the size of the images. The optimisers update all
weights in one operator (``foreach``). sigma^-0.5 is computed by products as on a GPU, where one
graph launches them. On a GPU the counts are lower: its optimisers are fused, and one call computes
the views of several batches. Spectra and kNN are off, since they are not measured in every step.
"""

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from rdm_solo.cli import arguments
from rdm_solo.ground.lightning import pl
from rdm_solo.methods import solo_learn
from rdm_solo.train.run import run

SETTINGS = {
    "SimSiam, learned predictor": ["method=simsiam"],
    "SimSiam, σ^-0.5": [
        "method=simsiam",
        "filter=target_pow",
        "p=-0.5",
        "filter.solver=products",
    ],
    "BYOL, learned predictor": ["method=byol"],
}
NETWORK = [
    "dataset=synthetic",
    "dataset.num_train=80",
    "dataset.num_val=16",
    "dataset.image_size=8",
    "batch_size=16",
    "max_epochs=1",
    "backbone.name=resnet18",
    "trainer=cpu",
    "trainer.enable_progress_bar=false",
    "+trainer.limit_val_batches=0",
    "diagnostics.every_n_epochs=0",
    "knn.every_n_epochs=0",
    "+optimizer.kwargs.foreach=true",
]
GRAPH = "in a CUDA graph"
# An operator belongs to the innermost of these functions that is running.
PARTS = {
    "_load_batches": "views",
    "_call_impl": "forward",  # of a torch module
    "iterate": GRAPH,
    "training_step": "loss",
    "log": "logging",
    "log_dict": "logging",
    "backward": "backward",
    "_update_in_place": "average of weights",
    "step": "optimiser",
}
REST = "rest"


class Operators(TorchDispatchMode):
    """Count operators by the part of a step that calls them."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[_part(sys._getframe(1))] += 1
        return func(*args, **(kwargs or {}))


def _part(frame: FrameType | None) -> str:
    while frame is not None:
        if part := PARTS.get(frame.f_code.co_name):
            return part
        frame = frame.f_back
    return REST


class SecondStep(pl.Callback):
    """Count the operators from the start of the second step to the start of the third.

    The first step creates the optimiser's state. The loader computes one batch in this time.
    """

    def __init__(self) -> None:
        self.operators = Operators()

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == 1:
            self.operators.__enter__()
        if batch_idx == 2:
            self.operators.__exit__(None, None, None)


def count(overrides: Sequence[str]) -> Counter[str]:
    """Train for an epoch of five batches and return the operators of a step by part."""
    step = SecondStep()
    config = arguments.compose("config", [*NETWORK, *overrides])
    with tempfile.TemporaryDirectory() as folder:
        run(config, Path(folder) / "run", callbacks=[step])
    return step.operators.counts


def launched(counts: Counter[str]) -> int:
    """Return how many operators the host launches for all but the views."""
    return counts.total() - counts["views"] - counts[GRAPH]


def measure(overrides: Sequence[str]) -> None:
    """Print a Markdown table of the parts, and the sum without the views and the graph."""
    columns = {name: count([*options, *overrides]) for name, options in SETTINGS.items()}
    print(f"torch {torch.__version__}, solo-learn {solo_learn.version()}\n")
    print("| operators of |", " | ".join(columns), "|")
    print("|---|" + "---|" * len(columns))
    for part in dict.fromkeys([*PARTS.values(), REST]):
        print(f"| {part} |", " | ".join(str(counts[part]) for counts in columns.values()), "|")
    print("| all but the views |", " | ".join(str(launched(c)) for c in columns.values()), "|")


def main() -> None:
    options = argparse.ArgumentParser(
        "python -m benchmarks.operators", description="Count the operators of a training step."
    )
    options.add_argument("overrides", nargs="*", help="options of train, such as method=simclr")
    measure(options.parse_args().overrides)


if __name__ == "__main__":
    main()
