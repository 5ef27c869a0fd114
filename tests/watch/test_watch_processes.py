"""Two processes with gloo measure what one measures, and the first one writes."""

import logging

import torch
from support.own_models import SimSiam, batches, siamese_step

from rdm_solo import runs
from rdm_solo.watch import Bounds, Watch


def watch_collapse(rank, size, folder, resume=False):
    """Watch two epochs of equal outputs; return rows, calls of log, warnings and collapses."""
    model = SimSiam()
    torch.nn.init.zeros_(model.projection_head.weight)
    logged = []
    messages = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())
    logging.getLogger("rdm_solo").addHandler(handler)
    options = {"resume": resume, "bounds": Bounds(warmup=0)}
    try:
        watch = Watch(folder, model, log=lambda *row: logged.append(row), **options)
    except ValueError as error:
        return str(error)
    collapsed_before = watch.collapsed
    rows = []
    for _ in range(2):
        for batch in batches():
            siamese_step(model, batch)
            watch.step(float(rank))
        rows.append(watch.end_epoch(val_acc1=rank))
    watch.close()
    logging.getLogger("rdm_solo").removeHandler(handler)
    return rows, len(logged), messages, watch.collapsed, collapsed_before


def test_rank_0_writes_warns_and_logs_and_all_ranks_return_the_same(worlds, tmp_path):
    folder = tmp_path / "run"
    first, second = worlds(2).run(watch_collapse, str(folder))
    rows, calls, messages, collapsed, _ = first
    assert repr(second) == repr((rows, 0, [], collapsed, []))  # NaN differs from NaN
    for row in rows:
        assert row["train/loss"] == 0.5
        assert row["val/acc1"] == 0
    assert calls == 2
    assert "complete collapse" in "".join(messages)
    assert collapsed == ["complete collapse"]
    assert runs.load(folder).summary["processes"] == 2
    for error in worlds(2).run(watch_collapse, str(folder)):
        assert "holds a run" in error  # on both, so that neither waits
    for resumed in worlds(2).run(watch_collapse, str(folder), True):
        assert resumed[-1] == ["complete collapse"]
    assert runs.load(folder).epochs == 4
