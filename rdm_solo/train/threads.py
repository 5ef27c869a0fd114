"""How many CPU threads a run uses."""

import contextlib
import os
from collections.abc import Iterator

import torch
from omegaconf import DictConfig
from torch import nn

from rdm_solo.data.views import Views
from rdm_solo.train.derived_values import on_cpu
from rdm_solo.train.environment import THREADS

# Measured on two cores that other programs used as well, torch 2.15: below 50 GFLOP a step's
# forward pass (two views of each image) two threads were slower than one, up to 20 times at the
# digits' 0.2 GFLOP, because they wait for each other; at 100 they were a fifth faster. On quiet
# cores two threads gain earlier, so the rule takes a little less than half of that per thread.
FLOPS_PER_THREAD = 20e9


def chosen(
    cfg: DictConfig, backbone: nn.Module, channels: int, views: Views, processes: int
) -> int | None:
    """``threads`` as typed, or else as many as a step's work can feed; None for a GPU's run."""
    if cfg.get("threads") is not None:  # which older configs lack
        return int(cfg.threads)
    if not on_cpu(cfg.trainer):
        return None
    # Processes share the cores, unless whoever started this one has said how many are its own.
    sharing = 1 if THREADS in os.environ else processes // cfg.trainer.num_nodes
    flops = cfg.batch_size * forward_flops(backbone, channels, views)
    return threads_for(flops, torch.get_num_threads(), sharing)


def threads_for(flops: float, available: int, processes: int = 1) -> int:
    """Threads for a step whose forward pass takes that many floating-point operations.

    One for each 20 GFLOP, at most this process's share of those available.

    >>> threads_for(0.2e9, available=8), threads_for(570e9, available=8, processes=2)
    (1, 4)
    """
    share = max(1, available // processes)
    return min(share, max(1, int(flops // FLOPS_PER_THREAD)))


def forward_flops(backbone: nn.Module, channels: int, views: Views) -> float:
    """Floating-point operations of a forward pass of all views of one image."""
    from torch.utils.flop_counter import FlopCounterMode

    training = backbone.training
    backbone.eval()
    total = 0
    with torch.no_grad():
        for pipeline in views.pipelines:
            with FlopCounterMode(display=False) as counter:
                backbone(torch.zeros(1, channels, pipeline.size, pipeline.size))
            total += counter.get_total_flops() * pipeline.num_crops
    backbone.train(training)
    return float(total)


@contextlib.contextmanager
def limited(threads: int | None) -> Iterator[None]:
    """Run the body with that many threads; with None nothing changes.

    The environment variable is set as well: Lightning gives several processes all cores without it.
    """
    if threads is None:
        yield
        return
    before, variable = torch.get_num_threads(), os.environ.get(THREADS)
    torch.set_num_threads(threads)
    os.environ[THREADS] = str(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
        del os.environ[THREADS]
        if variable is not None:
            os.environ[THREADS] = variable
