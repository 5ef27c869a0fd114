"""Rows and sums of several processes."""

from __future__ import annotations

import torch

from rdm_solo.distributed import gather, gather_equal, rank, sum_over_processes, world_size

COUNTS = [3, 0]


def rows(process: int, count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return (100 * process + torch.arange(2 * count)).view(count, 2).to(dtype)


def collect(process: int, processes: int) -> dict[str, object]:
    return {
        "place": (rank(), world_size()),
        "equal": gather_equal(rows(process, 2, torch.bfloat16).t().contiguous().t()),
        "unequal": gather(rows(process, COUNTS[process], torch.long)),
        "sum": sum_over_processes(torch.tensor([process, 1.5])),
    }


def test_rows_come_in_rank_order_and_sums_are_everyones(worlds):
    for process, result in enumerate(worlds(2).run(collect)):
        assert result["place"] == (process, 2)
        want = torch.cat([rows(r, 2, torch.bfloat16) for r in range(2)])
        assert torch.equal(result["equal"], want)
        for r, part in enumerate(result["unequal"]):
            assert torch.equal(part, rows(r, COUNTS[r], torch.long))
        assert result["sum"].tolist() == [1, 3]
