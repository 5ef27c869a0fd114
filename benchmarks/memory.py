"""Peak memory of a call."""

import gc

import torch

from benchmarks.timing import Call


def peak_bytes(run: Call, device: str) -> int:
    """Return the peak of bytes allocated during a call, without those allocated before it.

    >>> peak_bytes(lambda: torch.zeros(1000, 250) + 1, "cpu") // 1000
    2000
    """
    gc.collect()
    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        return torch.cuda.max_memory_allocated() - before
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profile:
        run()
    held = peak = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    return peak
