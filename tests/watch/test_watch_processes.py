"""Two processes with gloo give what one gives, and one of them writes."""

from __future__ import annotations

import logging

import pytest
import torch
from support.own_models import SimSiam, batches, siamese_step

from rdm_solo import runs
from rdm_solo.watch import Bounds, Watch


def watched(rank: int, size: int, folder: str, dead: bool, resume: bool = False):
    """Each process with its part of every batch; what it returns and what it logged."""
    model, logged = SimSiam(), []
    kept: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: kept.append(record.getMessage())
    logging.getLogger("rdm_solo").addHandler(handler)
    if dead:
        torch.nn.init.zeros_(model.projection_head.weight)
    log = {"log": lambda *given: logged.append(given)}
    try:
        watch = Watch(folder, model, views=2, resume=resume, bounds=Bounds(warmup=0), **log)
    except ValueError as error:
        return str(error)
    before, found = watch.collapsed, []
    for epoch in range(2):
        for batch in batches(n=12, seed=epoch):
            part = batch[:, rank * 12 // size : (rank + 1) * 12 // size]
            loss = siamese_step(model, part)
            loss.backward()
            watch.step(loss)
        found.append(watch.end_epoch({"val/acc1": float(rank)}))
    watch.close()
    logging.getLogger("rdm_solo").removeHandler(handler)
    return found, len(logged), kept, watch.collapsed, before


def test_two_processes_equal_one(worlds, tmp_path):
    alone, *_ = watched(0, 1, str(tmp_path / "one"), False)
    (first, *of_first), (second, *_) = worlds(2).run(watched, str(tmp_path / "two"), False)
    assert first == second
    for mine, both in zip(alone, first):
        assert mine.keys() == both.keys()
        for name in mine:
            assert both[name] == pytest.approx(mine[name], rel=1e-6, abs=1e-9), name
    assert of_first[2] == []
    assert runs.load(tmp_path / "two").summary["processes"] == 2
    again = worlds(2).run(watched, str(tmp_path / "two"), False)
    assert all("holds a run" in said for said in again)  # on both, so that neither waits


def test_the_first_process_writes_warns_and_logs_and_all_know(worlds, tmp_path):
    (_, *first), (_, *second) = worlds(2).run(watched, str(tmp_path / "run"), True)
    assert (first[0], second[0]) == (2, 0)
    assert any("complete collapse" in said for said in first[1])
    assert second[1] == []
    assert first[2] == second[2] == ["complete collapse"]
    assert runs.load(tmp_path / "run").epochs == 2
    again = worlds(2).run(watched, str(tmp_path / "run"), True, True)
    assert [of_one[-1] for of_one in again] == [["complete collapse"]] * 2  # both may end by it
    assert runs.load(tmp_path / "run").epochs == 4
