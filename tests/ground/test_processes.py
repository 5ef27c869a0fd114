"""Rows and sums of several processes; and the tests' own processes."""

from __future__ import annotations

import pytest
import torch

from rdm_solo.distributed import gather, gather_equal, rank, sum_over_processes, world_size

COUNTS = [3, 0, 1, 2]


def rows(process: int, count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return (100 * process + torch.arange(2 * count)).view(count, 2).to(dtype)


def collect(process: int, processes: int) -> dict[str, object]:
    return {
        "place": (rank(), world_size()),
        "equal": gather_equal(rows(process, 2, torch.bfloat16).t().contiguous().t()),
        "unequal": gather(rows(process, COUNTS[process], torch.long)),
        "sum": sum_over_processes(torch.tensor([process, 1.5])),
    }


@pytest.mark.parametrize("processes", [2, 4])
def test_rows_come_in_rank_order_and_sums_are_everyones(worlds, processes):
    for process, result in enumerate(worlds(processes).run(collect)):
        assert result["place"] == (process, processes)
        want = torch.cat([rows(r, 2, torch.bfloat16) for r in range(processes)])
        assert torch.equal(result["equal"], want)
        for r, part in enumerate(result["unequal"]):
            assert torch.equal(part, rows(r, COUNTS[r], torch.long))
        assert result["sum"].tolist() == [sum(range(processes)), 1.5 * processes]


def fail(process: int, processes: int) -> None:
    if process == 1:
        raise ValueError("no such row")


def test_a_failure_of_one_process_fails_the_test_and_the_next_starts_anew(worlds):
    with pytest.raises(AssertionError, match=r"(?s)process 1: .*no such row"):
        worlds(2).run(fail)
    assert [result["place"] for result in worlds(2).run(collect)] == [(0, 2), (1, 2)]
