"""Two processes with gloo measure what one measures, and the first one writes."""

from __future__ import annotations

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


def unequal(rank: int, size: int, folder: str, odd: str):
    """Watch an epoch in which the second process has 3 of 12 rows, and an odd step."""
    model, recorded = SimSiam(), []
    watch = Watch(folder, model, views=2, max_rows=100, steps_per_epoch=8)
    for step, batch in enumerate(batches(steps=8, n=12)):
        part = batch if size == 1 else batch[:, :9] if rank == 0 else batch[:, 9:]
        due = watch.observer.recording
        here = odd != "none" and rank == size - 1 and step == (0 if "first" in odd else 2)
        if here and odd == "three calls":
            model(part[0])
        if here and "first" in odd:  # in one call nobody can tell the views
            model(part.flatten(0, 1))
        else:
            siamese_step(model, part)
        before = watch.spectra._steps
        watch.step()
        if due and watch.spectra._steps > before:
            recorded.append(step)
    rows = watch.end_epoch()
    watch.close()
    return rows, recorded


@pytest.mark.parametrize("odd", ["none", "three calls", "one call at first"])
def test_two_processes_with_unequal_rows_measure_the_same_steps_as_one(worlds, tmp_path, odd):
    """2 views of 12 rows and room for 100: every second step, but the odd step."""
    alone, of_one = unequal(0, 1, str(tmp_path / "one"), odd)
    assert of_one == ([0, 2, 4, 6] if odd in ("none", "one call at first") else [0, 4, 6])
    for rows, recorded in worlds(2).run(unequal, str(tmp_path / "two"), odd):
        assert recorded == of_one
        assert rows.keys() == alone.keys()
        assert ("erank/positive" in rows) == ("first" not in odd)
        for name, value in alone.items():
            if name == "filter/monotonicity":
                continue  # p has 7 directions of 8: rounding alone orders the last eigenvalues
            assert rows[name] == pytest.approx(value, rel=1e-6, abs=1e-9), name
