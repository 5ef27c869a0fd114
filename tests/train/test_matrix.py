"""Methods train in bf16 on two processes, and every filter has gradients in float16."""

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
# A filter, and the methods with a softmax or a centre of all rows.
SETTINGS = [
    "method=byol filter=target_pow",
    "method=swav",
    "method=dino",
    "method=symsimsiam",
]
# Every filter, with simsiam and byol in turn, and methods without a filter.
SIMSIAM = [f"method=simsiam filter={name}" for name in FILTERS[::2]]
BYOL = [f"method=byol filter={name}" for name in FILTERS[1::2]]
ALL = [*SIMSIAM, *BYOL, "method=vanilla", *SETTINGS[1:]]


def tiny(setting: str, *more: str) -> list[str]:
    overrides = [*TINY, *setting.split(), *more]
    if "filter=" in setting:
        overrides.append("method.kwargs.pred_hidden_dim=8")
    if "swav" in setting or "dino" in setting:
        overrides.append("method.kwargs.num_prototypes=8")
    return overrides


def check(row: dict[str, float], setting: str) -> None:
    assert all(math.isfinite(value) for value in row.values())
    assert 1 - 1e-6 <= row["erank/online"] <= 8 + 1e-6
    assert 1 - 1e-6 <= row["erank/target"] <= 8 + 1e-6
    assert 0 <= row["val/knn_acc1"] <= 100
    if setting == "method=symsimsiam":
        assert abs(row["erank/gap"]) < 1e-6


def _train_all(rank: int, world: int, folder: str) -> None:
    """Train one run after the other, in half precision and with accumulated gradients."""
    options = ["trainer.strategy=ddp", f"trainer.devices={world}", "batch_size=4"]
    options += ["trainer.precision=bf16-mixed", "trainer.accumulate_grad_batches=2"]
    for number, setting in enumerate(SETTINGS):
        out = Path(folder) / str(number)
        summary = run(out, *tiny(setting, *options))
        if rank == 0:
            check(rows(out)[-1], setting)
        derived = summary["derived"]
        assert derived["global_batch"] == 16
        assert derived["lr"] == pytest.approx(derived["base_lr"] * 16 / 256)


def test_two_processes(worlds, tmp_path):
    worlds(2).run(_train_all, str(tmp_path))
    assert len(list(tmp_path.glob("*/metrics.csv"))) == len(SETTINGS)


@pytest.mark.parametrize("setting", ALL)
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


@pytest.mark.long
def test_a_compiled_backbone_gives_the_same_run_and_the_same_names(tmp_path):
    """Compile with the eager backend: it captures the graph and needs no compiler."""
    options = tiny("method=byol filter=target_pow")
    expected = run(tmp_path / "plain", *options)
    actual = run(tmp_path / "compiled", *options, "backbone.compile=eager")
    loss = expected["last"]["train/loss"]
    assert actual["last"]["train/loss"] == pytest.approx(loss, abs=1e-5)
    names = checkpoint(tmp_path / "plain")["state_dict"].keys()
    assert checkpoint(tmp_path / "compiled")["state_dict"].keys() == names
