"""TensorBoard's event files and W&B's offline files, read back after a run and after its probe."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from test_train import SMALL, configure, run

from rdm_solo import host, loggers, train
from rdm_solo.cli import check_arguments, config_folder
from rdm_solo.data import DataError

# What a logger must hold under its own name; DESIGN's list.
NAMES = {
    "erank/online",
    "erank/target",
    "erank/gap",
    "erank/projection",
    "alignment/online_target",
    "alignment/online_target_weighted",
    "alignment/target_positive",
    "filter/monotonicity",
    "filter/monotonicity_directional",
    "feature/variance",
    "train/loss",
    "val/acc1",
    "val/knn_acc1",
}


def events(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(folder))
    read.Reload()
    return {t: [(e.step, e.value) for e in read.Scalars(t)] for t in read.Tags()["scalars"]}


def offline_history(folder: Path) -> tuple[set[str], list[dict[str, float]], dict]:
    """Ids, history rows and summary in the ``.wandb`` files of a folder."""
    from wandb.proto import wandb_internal_pb2

    ids, rows, summary = set(), [], {}
    for path in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        for content in records(path.read_bytes()):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(content)
            if record.HasField("run"):
                ids.add((record.run.run_id, record.run.project, record.run.run_group))
            items = record.history.item
            if items:
                rows.append(
                    {".".join(i.nested_key) or i.key: json.loads(i.value_json) for i in items}
                )
            for item in record.summary.update:
                summary[".".join(item.nested_key) or item.key] = json.loads(item.value_json)
    return ids, rows, summary


def exit_codes(folder: Path) -> list[int]:
    """How W&B was told that the runs in the ``.wandb`` files of a folder ended."""
    from wandb.proto import wandb_internal_pb2

    codes = []
    for path in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        for content in records(path.read_bytes()):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(content)
            if record.HasField("exit"):
                codes.append(record.exit.exit_code)
    return codes


def records(content: bytes) -> list[bytes]:
    """The records of a ``.wandb`` file: LevelDB's log format behind a header of 7 bytes."""
    found, parts, at = [], [], 7
    while at + 7 <= len(content):
        room = 32768 - at % 32768
        if room < 7:
            at += room
            continue
        length, kind = int.from_bytes(content[at + 4 : at + 6], "little"), content[at + 6]
        parts.append(content[at + 7 : at + 7 + length])
        at += 7 + length
        if kind in (1, 4):  # whole, or last
            found.append(b"".join(parts))
            parts = []
    return found


@pytest.fixture(scope="module")
def logged(tmp_path_factory):
    pytest.importorskip("tensorboard")
    pytest.importorskip("wandb")
    folder = tmp_path_factory.mktemp("logged")
    options = ["logger=[tensorboard,wandb]", "logger.wandb.offline=true", "seed=4"]
    run(folder, *SMALL, "filter=target_pow", *options)
    with open(folder / "metrics.csv", newline="") as file:
        return folder, list(csv.DictReader(file))


def test_tensorboard_holds_every_scalar_under_its_name(logged):
    folder, table = logged
    scalars = events(folder / "tensorboard")
    assert set(scalars) >= NAMES
    for name in NAMES:
        assert [value for _, value in scalars[name]] == pytest.approx(
            [float(row[name]) for row in table], rel=1e-6
        )
    # Four steps an epoch; a value stands at the last of its epoch.
    assert [step for step, _ in scalars["erank/online"]] == [3, 7]


@pytest.mark.parametrize("method", ["swav", "dino", "symsimsiam"])
def test_every_methods_loss_has_one_name_and_one_value_an_epoch(method, tmp_path):
    options = [option for option in SMALL if "pred_hidden" not in option]
    more = [] if method == "symsimsiam" else ["method.kwargs.num_prototypes=8"]
    run(tmp_path, *options, f"method={method}", *more, "logger=tensorboard")
    found = events(tmp_path / "tensorboard")
    assert len(found["train/loss"]) == 2
    assert not [name for name in found if name.endswith(("_step", "_epoch"))]


def test_wandb_holds_them_too_in_a_run_that_can_be_found_again(logged):
    folder, table = logged
    ids, rows, _ = offline_history(folder)
    kept = json.loads((folder / "loggers.json").read_text())["wandb"]
    assert ids == {(kept["id"], "rdm_solo", "synthetic-simsiam-target_pow-p=-0.5")}
    assert kept["name"] == "simsiam-target_pow-p=-0.5-seed=4"
    for name in NAMES:
        values = [row[name] for row in rows if name in row]
        assert values == pytest.approx([float(row[name]) for row in table], rel=1e-6)


def test_a_run_that_crashes_failed_in_wandb_too(logged, tmp_path):
    class Crash(host.pl.Callback):
        def __init__(self, error: BaseException) -> None:
            self.error = error

        def on_train_epoch_end(self, trainer, module):
            raise self.error

    assert exit_codes(logged[0])[0] == 0
    errors = [(RuntimeError("a crash"), RuntimeError), (DataError("an image"), SystemExit)]
    for i, (error, seen) in enumerate(errors):
        folder = tmp_path / str(i)
        folder.mkdir()
        cfg = configure(*SMALL, "logger=wandb", "logger.wandb.offline=true")
        with pytest.raises(seen):
            train.run(cfg, folder, [Crash(error)])
        assert exit_codes(folder) == [1]


def test_later_scalars_go_into_the_same_runs(logged):
    folder, _ = logged
    assert loggers.append(folder, {"linear/top1": 62.5}, step=8) == ["tensorboard", "wandb"]
    scalars = events(folder / "tensorboard")
    assert scalars["linear/top1"] == [(8, 62.5)]
    assert set(scalars) >= NAMES
    ids, rows, summary = offline_history(folder)
    assert len(ids) == 1
    assert [row["linear/top1"] for row in rows if "linear/top1" in row] == [62.5]
    assert summary["linear/top1"] == 62.5


def test_a_resumed_run_keeps_its_wandb_id(logged, tmp_path):
    folder, _ = logged
    cfg = configure(*SMALL, "logger=wandb", "logger.wandb.offline=true")
    (_,), again = loggers.build(cfg, tmp_path, resume=folder)
    (_,), fresh = loggers.build(cfg, tmp_path)
    kept = json.loads((folder / "loggers.json").read_text())["wandb"]["id"]
    assert again["wandb"]["id"] == kept
    assert fresh["wandb"]["id"] != kept


def test_a_logger_that_fails_is_named_and_the_others_are_served(logged, tmp_path, caplog):
    (tmp_path / "tensorboard").write_text("a file where the folder should be")
    record = {"tensorboard": {"folder": "tensorboard"}, "unheard_of": {}}
    (tmp_path / "loggers.json").write_text(json.dumps(record))
    assert loggers.append(tmp_path, {"linear/top1": 1.0}, step=0) == []
    assert "linear/top1 did not reach tensorboard" in caplog.text
    assert loggers.append(tmp_path / "elsewhere", {"linear/top1": 1.0}, step=0) == []


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ([], []),
        (["logger=csv"], []),
        (["logger=tensorboard"], ["tensorboard"]),
        (["logger=[csv,wandb]"], ["wandb"]),
        (["logger=[tensorboard,wandb]"], ["tensorboard", "wandb"]),
    ],
)
def test_one_logger_or_several_can_be_chosen(choice, names):
    check_arguments(choice)
    with initialize_config_dir(str(config_folder()), version_base="1.3"):
        assert list(compose("config", overrides=choice).logger) == names


def test_a_mistyped_logger_is_answered(capsys):
    with pytest.raises(SystemExit):
        check_arguments(["logger=[tensorboard,wandbb]"])
    assert "got 'wandbb'; did you mean 'wandb'?" in capsys.readouterr().err


def test_a_missing_package_is_a_sentence(monkeypatch, tmp_path):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match="logger=wandb needs the package wandb"):
        loggers.weights_and_biases(tmp_path, {}, "a", "b")
