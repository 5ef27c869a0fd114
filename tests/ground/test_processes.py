"""Rows and sums of several processes; and the tests' own processes."""

from __future__ import annotations

import pytest
import torch

from rdm_solo.distributed import gather, gather_equal, rank, sum_over_processes, world_size

COUNTS = [3, 0, 1, 2]


def rows(process: int, count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return (100 * process + torch.arange(2 * count)).view(count, 2).to(dtype)


def collect(process: int, processes: int) -> dict[str, object]:
    found: dict[str, object] = {"place": (rank(), world_size())}
    for dtype in (torch.float32, torch.long, torch.bfloat16):
        found[f"equal {dtype}"] = gather_equal(rows(process, 2, dtype))
        found[f"unequal {dtype}"] = gather(rows(process, COUNTS[process], dtype))
    found["strided"] = gather_equal(torch.stack([rows(process, 2)] * 2, 2)[..., 0])
    found["none"] = gather(rows(process, 0))
    found["sum"] = sum_over_processes(torch.tensor([process, 1.5]))
    return found


@pytest.mark.parametrize("processes", [2, 4])
def test_rows_come_in_rank_order_and_sums_are_everyones(worlds, processes):
    for process, found in enumerate(worlds(processes).run(collect)):
        assert found["place"] == (process, processes)
        for dtype in (torch.float32, torch.long, torch.bfloat16):
            want = torch.cat([rows(r, 2, dtype) for r in range(processes)])
            assert found[f"equal {dtype}"].dtype == dtype
            assert torch.equal(found[f"equal {dtype}"], want)
            for r, part in enumerate(found[f"unequal {dtype}"]):
                assert part.shape == (COUNTS[r], 2)
                assert torch.equal(part, rows(r, COUNTS[r], dtype))
        assert torch.equal(found["strided"], torch.cat([rows(r, 2) for r in range(processes)]))
        assert [part.shape for part in found["none"]] == [(0, 2)] * processes
        assert found["sum"].tolist() == [sum(range(processes)), 1.5 * processes]


def fail(process: int, processes: int) -> None:
    if process == 1:
        raise ValueError("no such row")


def test_a_failure_of_one_process_fails_the_test_and_the_next_starts_anew(worlds):
    with pytest.raises(AssertionError, match=r"(?s)process 1: .*no such row"):
        worlds(2).run(fail)
    assert [found["place"] for found in worlds(2).run(collect)] == [(0, 2), (1, 2)]
