"""Every method and every filter trains in float32, bf16 and float16, in one process and in two."""

import math
from pathlib import Path

import pytest
import torch
from support.small_methods import FILTERS, batch, loss_of, make
from support.small_runs import WITHOUT_PREDICTOR, checkpoint, rows, run

TINY = [
    *WITHOUT_PREDICTOR,
    "dataset.num_train=32",
    "batch_size=8",
    "max_epochs=1",
    "scheduler.warmup_epochs=0",
    "method.kwargs.proj_output_dim=8",
    "+backbone.kwargs.width=8",
    "knn.k=3",
]
# Every filter, with simsiam and byol in turn, and every method without a filter.
WITHOUT_FILTER = ["method=swav", "method=dino", "method=symsimsiam", "method=vanilla"]
SIMSIAM = [f"method=simsiam filter={name}" for name in FILTERS[::2]]
BYOL = [f"method=byol filter={name}" for name in FILTERS[1::2]]
SETTINGS = [*SIMSIAM, *BYOL, *WITHOUT_FILTER]
# Each branch's filter, and the methods with a softmax or a centre of all rows.
IN_TWO_PROCESSES = [
    "method=simsiam filter=online_directcopy",
    "method=byol filter=target_pow",
    "method=swav",
    "method=dino",
    "method=symsimsiam",
]
PRECISIONS = ["32-true", "bf16-mixed"]


def tiny(setting: str, precision: str, *more: str) -> list[str]:
    overrides = [*TINY, *setting.split(), f"trainer.precision={precision}", *more]
    if "filter=" in setting:
        overrides.append("method.kwargs.pred_hidden_dim=8")
    if "truncate" in setting:
        overrides.append("filter.keep=4")
    if "swav" in setting or "dino" in setting:
        overrides.append("method.kwargs.num_prototypes=8")
    return overrides


def check(row: dict[str, float], setting: str) -> None:
    assert math.isfinite(row["train/loss"])
    assert 1 - 1e-6 <= row["erank/online"] <= 8 + 1e-6
    assert 1 - 1e-6 <= row["erank/target"] <= 8 + 1e-6
    assert 0 <= row["val/knn_acc1"] <= 100
    if setting in ("method=symsimsiam", "method=vanilla", "method=simsiam filter=identity"):
        assert abs(row["erank/gap"]) < 1e-6


@pytest.mark.parametrize("number", range(len(SETTINGS)))
def test_one_process(number, tmp_path):
    """Train every other setting in half precision with accumulated gradients."""
    precision = PRECISIONS[(number + 1) % 2]
    batches = 2 if precision == "bf16-mixed" else 1
    accumulate = f"trainer.accumulate_grad_batches={batches}"
    summary = run(tmp_path, *tiny(SETTINGS[number], precision, accumulate))
    (row,) = rows(tmp_path)
    check(row, SETTINGS[number])
    assert all(math.isfinite(value) for value in row.values())
    derived = summary["derived"]
    assert derived["global_batch"] == 8 * batches
    assert derived["lr"] == pytest.approx(derived["base_lr"] * 8 * batches / 256)


def _train_all(rank: int, world: int, folder: str) -> None:
    """Train one run after the other, each in the precision that it has not in one process."""
    ddp = ["trainer.strategy=ddp", f"trainer.devices={world}", "batch_size=4"]
    for number, setting in enumerate(IN_TWO_PROCESSES):
        precision = PRECISIONS[SETTINGS.index(setting) % 2]
        out = Path(folder) / str(number)
        run(out, *tiny(setting, precision, *ddp))
        if rank == 0:
            check(rows(out)[-1], setting)


def test_two_processes(worlds, tmp_path):
    worlds(2).run(_train_all, str(tmp_path))
    assert len(list(tmp_path.glob("*/metrics.csv"))) == len(IN_TWO_PROCESSES)


@pytest.mark.parametrize("setting", SETTINGS)
def test_float16_gives_finite_gradients(setting):
    """Use autocast and a scaled loss, as Lightning does on GPUs alone."""
    model = make(*setting.split())
    with torch.autocast("cpu", dtype=torch.float16):
        loss = loss_of(model, batch(16))
    assert loss.isfinite()
    (1024 * loss).backward()
    for parameter in model.backbone.parameters():
        assert parameter.grad is not None
        assert parameter.grad.isfinite().all()


def test_a_compiled_backbone_gives_the_same_run_and_the_same_names(tmp_path):
    """Compile with the eager backend: it captures the graph and needs no compiler."""
    options = tiny("method=byol filter=target_pow", "32-true")
    expected = run(tmp_path / "plain", *options)
    actual = run(tmp_path / "compiled", *options, "backbone.compile=eager")
    loss = expected["last"]["train/loss"]
    assert actual["last"]["train/loss"] == pytest.approx(loss, abs=1e-5)
    names = checkpoint(tmp_path / "plain")["state_dict"].keys()
    assert checkpoint(tmp_path / "compiled")["state_dict"].keys() == names
