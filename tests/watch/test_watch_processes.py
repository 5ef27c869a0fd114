"""Two processes with gloo measure what one measures, and the first one writes."""

import logging

import pytest
import torch
from support.own_models import SimSiam, batches, siamese_step

from rdm_solo import runs
from rdm_solo.watch import Bounds, Watch


def collapsed(rank: int, size: int, folder: str, resume: bool = False):
    """Watch two epochs of equal outputs; return rows, calls of log, warnings and collapses."""
    model, logged, messages = SimSiam(), [], []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())
    logging.getLogger("rdm_solo").addHandler(handler)
    torch.nn.init.zeros_(model.projection_head.weight)
    options = {"views": 2, "resume": resume, "bounds": Bounds(warmup=0)}
    try:
        watch = Watch(folder, model, log=lambda *row: logged.append(row), **options)
    except ValueError as error:
        return str(error)
    before, rows = watch.collapsed, []
    for _ in range(2):
        for batch in batches():
            siamese_step(model, batch)
            watch.step(float(rank))
        rows.append(watch.end_epoch({"val/acc1": float(rank)}))
    watch.close()
    logging.getLogger("rdm_solo").removeHandler(handler)
    return rows, len(logged), messages, watch.collapsed, before


def test_the_first_process_writes_warns_and_logs_and_all_know(worlds, tmp_path):
    folder = tmp_path / "run"
    (rows, *first), (same_rows, *second) = worlds(2).run(collapsed, str(folder))
    assert repr(rows) == repr(same_rows)  # NaN differs from NaN
    assert [(row["train/loss"], row["val/acc1"]) for row in rows] == [(0.5, 0.0)] * 2
    assert (first[0], second[0]) == (2, 0)
    assert any("complete collapse" in message for message in first[1])
    assert second[1] == []
    assert first[2] == second[2] == ["complete collapse"]
    run = runs.load(folder)
    assert (run.epochs, run.summary["processes"]) == (2, 2)
    again = worlds(2).run(collapsed, str(folder))
    assert all("holds a run" in message for message in again)  # on both, so that neither waits
    again = worlds(2).run(collapsed, str(folder), True)
    assert [result[-1] for result in again] == [["complete collapse"]] * 2  # both may end by it
    assert runs.load(folder).epochs == 4


def one_call_at_first(rank: int, size: int, folder: str) -> dict[str, float]:
    """Watch an epoch in which the last process has 3 of 12 rows, and at first hides its views."""
    model = SimSiam()
    with Watch(folder, model, views=2) as watch:
        for step, batch in enumerate(batches(n=12)):
            part = batch if size == 1 else batch[:, :9] if rank == 0 else batch[:, 9:]
            if step == 0 and rank == size - 1:
                model(part.flatten(0, 1))
            else:
                siamese_step(model, part)
            watch.step()
        return watch.end_epoch()


def test_positives_that_one_of_two_processes_lacks_are_measured_by_neither(worlds, tmp_path):
    alone = one_call_at_first(0, 1, str(tmp_path / "one"))
    for row in worlds(2).run(one_call_at_first, str(tmp_path / "two")):
        assert row.keys() == alone.keys()
        assert "erank/positive" not in row
        # p has 7 directions of 8: rounding alone orders the last eigenvalues.
        for name in alone.keys() - {"filter/monotonicity"}:
            assert row[name] == pytest.approx(alone[name], rel=1e-6, abs=1e-9), name
