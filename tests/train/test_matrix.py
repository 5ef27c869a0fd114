"""Every method with every filter takes tiny steps; every method, and every filter, in float32 and
in bf16, in one process and in two."""

import math
from pathlib import Path

import pytest
import torch
from support.small_methods import FILTERS, batch, loss_of, make
from support.small_runs import SMALL, checkpoint, rows, run

from rdm_solo.methods import solo_learn

TINY = [option for option in SMALL if "pred_hidden" not in option]
TINY += ["dataset.num_train=32", "batch_size=8", "max_epochs=1", "scheduler.warmup_epochs=0"]
TINY += ["method.kwargs.proj_output_dim=8", "+backbone.kwargs.width=8", "knn.k=3"]
WITHOUT_FILTER = ["swav", "dino", "symsimsiam", "vanilla"]
# Every method and every filter, without every pair of them.
SOME = [
    *(f"method={('simsiam', 'byol')[i % 2]} filter={name}" for i, name in enumerate(FILTERS)),
    *(f"method={method}" for method in WITHOUT_FILTER),
]
# Each branch's filter, and the methods with a softmax or a centre of all rows.
IN_TWO = [SOME[2], SOME[-5], *SOME[-4:-1]]
PRECISIONS = ["32-true", "bf16-mixed"]


def tiny(contestant: str, precision: str, *more: str) -> list[str]:
    overrides = [*contestant.split(), f"trainer.precision={precision}", *more]
    if "simsiam filter" in contestant or "byol" in contestant:
        overrides.append("method.kwargs.pred_hidden_dim=8")
    if "swav" in contestant or "dino" in contestant:
        overrides.append("method.kwargs.num_prototypes=8")
    return [*TINY, *overrides]


def check(row: dict[str, float], contestant: str) -> None:
    assert math.isfinite(row["train/loss"])
    assert 1 - 1e-6 <= row["erank/online"] <= 8 + 1e-6
    assert 1 - 1e-6 <= row["erank/target"] <= 8 + 1e-6
    assert 0 <= row["val/knn_acc1"] <= 100
    if any(name in contestant for name in ("symsimsiam", "vanilla", "simsiam filter=ide")):
        assert abs(row["erank/gap"]) < 1e-6


@pytest.mark.parametrize("number", range(len(SOME)))
def test_one_process(number, tmp_path):
    """Every other one in half precision, which accumulates gradients as well; the global batch and
    the rate follow."""
    contestant, precision = SOME[number], PRECISIONS[(number + 1) % 2]
    times = 2 if precision == "bf16-mixed" else 1
    more = f"trainer.accumulate_grad_batches={times}"
    summary = run(tmp_path, *tiny(contestant, precision, more))
    check(rows(tmp_path)[-1], contestant)
    assert all(map(math.isfinite, rows(tmp_path)[-1].values()))
    derived = summary["derived"]
    assert derived["global_batch"] == 8 * times
    assert derived["lr"] == pytest.approx(derived["base_lr"] * 8 * times / 256)


def _two(rank: int, world: int, folder: str) -> None:
    """Train one run after the other, each in the precision that it has not in one process."""
    ddp = ["trainer.strategy=ddp", f"trainer.devices={world}", "batch_size=4"]
    for number, contestant in enumerate(IN_TWO):
        precision = PRECISIONS[SOME.index(contestant) % 2]
        out = Path(folder) / str(number)
        if rank == 0:
            out.mkdir()
        run(out, *tiny(contestant, precision, *ddp))
        if rank == 0:
            check(rows(out)[-1], contestant)


def test_two_processes(worlds, tmp_path):
    worlds(2).run(_two, str(tmp_path))
    assert len(list(tmp_path.glob("*/metrics.csv"))) == len(IN_TWO)


@pytest.mark.parametrize("contestant", SOME)
def test_half_precision_that_lightning_gives_to_gpus_alone(contestant):
    """float16 autocast, with the scaled loss that AMP hands to backward."""
    model = make(*contestant.split())
    if "swav" in contestant:
        solo_learn.add_sinkhorn(model)
    with torch.autocast("cpu", dtype=torch.float16):
        loss = loss_of(model, batch(16))
    assert loss.isfinite()
    (1024 * loss).backward()
    gradients = [p.grad for p in model.backbone.parameters()]
    assert all(g is not None and g.isfinite().all() for g in gradients)


def test_a_compiled_backbone_gives_the_same_run_and_the_same_names(tmp_path):
    """By the eager backend, which needs no compiler: the graph is captured, the kernels are not."""
    results = {}
    for compiled in ("false", "eager"):
        folder = tmp_path / compiled
        folder.mkdir()
        options = tiny("method=byol filter=online_log1p", "32-true", f"backbone.compile={compiled}")
        summary = run(folder, *options)
        names = checkpoint(folder)["state_dict"].keys()
        results[compiled] = summary["last"]["train/loss"], names
    assert results["eager"][0] == pytest.approx(results["false"][0], abs=1e-5)
    assert results["eager"][1] == results["false"][1]
