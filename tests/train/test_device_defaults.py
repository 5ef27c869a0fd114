"""Options that the config leaves to the device, and runs that keep theirs when they resume."""

from itertools import count
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from support.small_runs import FINISHED, checkpoint, configure, rows, run, run_until, same

from rdm_solo.callbacks import checkpointing
from rdm_solo.runs import checkpoints
from rdm_solo.train import device_defaults

# The run of the fixture ``finished``, without its figure.
OPTIONS = [*FINISHED, "~callbacks.ranks", "checkpoint.keep=all"]
NAMES = ["trainer.precision", "trainer.benchmark", "optimizer.fused", "checkpoint.min_seconds"]
# What a run on a GPU would do otherwise.
PLAIN = ["32-true", False, False, 0]
FAST = ["bf16-mixed", True, True, 60]


def chosen(*options: str, on_gpu: bool = True, has_bfloat16: bool = True) -> list[object]:
    cfg = configure(*options)
    cfg = device_defaults.fill(cfg, device_defaults.defaults(cfg, on_gpu, has_bfloat16))
    assert cfg.checkpoint.every_n_epochs
    values = [OmegaConf.select(cfg, name) for name in NAMES]
    for name, value in zip(NAMES, values):
        assert f"{name}={value}".lower() in device_defaults.describe(cfg).split()
    return values


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], FAST),
        (["trainer=ddp", "experiment=cifar10/simsiam_target_pow"], FAST),
        ([f"{name}={str(value).lower()}" for name, value in zip(NAMES, PLAIN)], PLAIN),
        (["++trainer.deterministic=true"], ["bf16-mixed", False, True, 60]),
        (["method=dino", "dataset=cifar10"], ["bf16-mixed", True, False, 60]),  # LARS
        # Lightning cannot clip gradients that a fused optimiser unscales.
        (["trainer.precision=16-mixed"], ["16-mixed", True, False, 60]),
        (["checkpoint.every_n_epochs=1"], ["bf16-mixed", True, True, 0]),
        (["checkpoint.keep=all"], ["bf16-mixed", True, True, 0]),
    ],
)
def test_a_gpu_chooses_what_the_config_leaves_open(options, expected):
    assert chosen(*options) == expected


def test_an_old_gpu_trains_in_32_bits_and_a_cpu_with_the_plain_values():
    assert chosen(has_bfloat16=False) == ["32-true", True, True, 60]
    assert chosen(on_gpu=False, has_bfloat16=False) == ["32-true", None, False, 0]


def test_a_resumed_run_keeps_its_fused_optimiser(tmp_path):
    options = [*OPTIONS, "overwrite=true"]
    run_until(2, tmp_path, *options, "optimizer.fused=true")
    summary = run(tmp_path, *options)
    assert summary["config"]["optimizer"]["fused"]
    (optimizer,) = checkpoint(tmp_path)["optimizer_states"]
    assert all(group["fused"] for group in optimizer["param_groups"])


def test_checkpoints_are_apart_and_a_killed_run_repeats_the_epochs_after_the_last(
    tmp_path, finished, monkeypatch
):
    # The clock advances by 25 seconds whenever it is read: after an epoch and after a checkpoint.
    monkeypatch.setattr(checkpointing, "monotonic", count(step=25).__next__)
    options = [*OPTIONS, "checkpoint.min_seconds=60"]
    run_until(3, tmp_path, *options)
    assert len(rows(tmp_path)) == 2
    assert list(checkpoints.by_epoch(tmp_path)) == [1]
    run(tmp_path, *options)
    assert list(checkpoints.by_epoch(tmp_path)) == [1, 2, 3], "the first epoch, and the last"
    assert rows(tmp_path) == rows(finished)
    weights = checkpoint(tmp_path)["state_dict"]
    assert same(weights, checkpoint(finished)["state_dict"])


def _train(rank: int, world: int, folder: str) -> None:
    """Train with clocks that disagree: by rank 0's no checkpoint is due, by rank 1's all are."""
    with pytest.MonkeyPatch.context() as patch:
        step = 0 if rank == 0 else 1000
        patch.setattr(checkpointing, "monotonic", count(step=step).__next__)
        options = ["trainer.strategy=ddp", f"trainer.devices={world}", "checkpoint.min_seconds=60"]
        run(Path(folder), *OPTIONS, *options, "batch_size=8")


def test_the_first_process_decides(worlds, tmp_path):
    worlds(2).run(_train, str(tmp_path))
    assert list(checkpoints.by_epoch(tmp_path)) == [1, 3]
