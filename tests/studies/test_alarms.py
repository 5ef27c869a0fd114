"""The study of the warnings: its data, its label, its judgement, and a run of it."""

import math

import pandas as pd
import pytest
import torch
from support.small_runs import train_study

from studies import training
from studies.alarms import choosing, data, judging, outcome, plan, runs
from studies.alarms.page import STUDY
from studies.alarms.plan import PLAN
from studies.study import joined, series

KNN = PLAN["rules"]["kNN below the untrained network's"]


def row(gain: float, knn: list[float], setting: str = "healthy, simsiam") -> dict[str, str]:
    """Return a run of eight epochs with kNN in every second one and this gain in accuracy."""
    cells = dict.fromkeys(PLAN["recorded"]["every epoch"], "-" + " -" * 8)
    values = [knn[0]]
    for value in knn[1:]:
        values += [math.nan, value]
    cells["val/knn_acc1"] = joined(values)
    about = {"method": "simsiam", "data": "digits", "dimensions": "32", "diverged": ""}
    accuracy = {"linear_untrained": "50", "linear_trained": str(50 + gain)}
    return {**about, "setting": setting, **accuracy, **cells}


@pytest.mark.parametrize(
    ("knn", "epoch"),
    [
        ([30, 20, 20, 20, 20], 6),  # epoch 2 is in the warm-up
        ([30, 40, 40, 20, 20], 8),
        ([30, 40, 20, 40, 20], math.nan),  # two in a row
        ([30, 40, 40, 40, 40], math.nan),
        ([30, 30, 30, 30, 30], math.nan),
    ],
)
def test_below_the_untrained_network(knn, epoch):
    rule = {"below": {"val/knn_acc1": 0.0}, "above untrained": True}
    for alike in (KNN, rule):
        assert judging.alarm(row(0, knn), alike) == pytest.approx(epoch, nan_ok=True)


def test_rates_and_precision():
    """Two of three collapses and one of four healthy runs: 0.1 * 2/3 to 0.9 * 1/4."""
    bad, good = [30, 9, 9, 9, 9], [30, 50, 50, 50, 50]
    rows = [row(-9, bad), row(-9, bad, "b"), row(1.9, good), row(2.1, bad, "c")]
    rows += [row(9, good) for _ in range(3)]
    counts = judging.counts(judging.judge(pd.DataFrame(rows), KNN))
    assert counts.sum().tolist() == [2, 3, 1, 4]
    shares = judging.shares(counts.sum().to_frame().T).iloc[0]
    assert shares["precision"] == pytest.approx(100 * (0.2 / 3) / (0.2 / 3 + 0.225))
    low, high = judging.intervals(counts)["detected"]
    assert shares["detected"] == pytest.approx(200 / 3)
    assert low < shares["detected"] < high


@pytest.mark.parametrize("name", ["textures", "angles", "digits"])
def test_held_out_images_are_in_no_other_part(name):
    train, labelled = data.source(name), data.labelled(name, 1920)
    assert torch.equal(train.train.images, labelled.train.images)
    images = torch.cat([train.train.images, train.val.images])
    seen = {bytes(image) for image in images.flatten(1).numpy()}
    held_out = [bytes(image) for image in labelled.val.images.flatten(1).numpy()]
    assert len(held_out) == (data.HELD_OUT_DIGITS if name == "digits" else 1920)
    if name != "digits":  # a few digits occur twice
        assert not seen.intersection(held_out)


def test_the_linear_accuracy_is_that_of_what_features_keep():
    rng = torch.Generator().manual_seed(0)
    y = torch.arange(300) % 3
    x = torch.nn.functional.one_hot(y).float() + 0.1 * torch.randn(300, 3, generator=rng)
    assert outcome.linear_accuracy(x, y, x, y) == 100
    assert outcome.linear_accuracy(x, y, x, (y + 1) % 3) == 0
    assert outcome.linear_accuracy(torch.ones(300, 3), y, x, y) < 40
    assert math.isnan(outcome.linear_accuracy(x / 0, y, x, y))


def test_a_run_of_the_study(monkeypatch, tmp_path):
    monkeypatch.setattr(training, "train", train_study)
    monkeypatch.setattr(runs, "VERSIONS", tmp_path / "versions.txt")
    runs.VERSIONS.write_text("the versions of another run\n")
    by_name = {run.name: run for run in plan.all_runs()}
    recorded = runs.measure(*by_name["test/digits/healthy, simsiam/0"])
    assert set(recorded) == set(STUDY.read().columns) | {"code", "processor"}
    assert recorded["versions"] == "2"
    assert "torch=" in runs.VERSIONS.read_text().splitlines()[1]
    knn = series(recorded["val/knn_acc1"])
    assert len(knn) == PLAN["epochs"] + 1
    assert not math.isnan(knn[0])
    assert 0 < float(recorded["linear_untrained"]) < 100


def test_the_plan_gives_the_recorded_options():
    recorded = STUDY.read().set_index("name")
    for run in plan.all_runs():
        if run.part == plan.CHOOSE:
            options = " ".join(plan.draw(run)[-2:])
            assert options == recorded.loc[run.name, "options"]


def test_regret_is_zero_for_the_best_pick_and_counts_from_the_best_of_the_drawn_runs():
    """Loss is the accuracy with the sign turned; the rank orders the runs the other way round."""
    rows = []
    for data_set in plan.DATA_TO_CHOOSE:
        for setting, best in {"a": 60, "b": 80, "c": 40}.items():
            for accuracy in range(best, best + PLAN["seeds"]):
                columns = dict.fromkeys(PLAN["measures"].values(), "nan")
                columns |= {"train/loss": str(-accuracy), "erank/target": str(-best)}
                columns |= {"part": plan.CHOOSE, "data": data_set, "setting": setting}
                columns |= {"linear_untrained": "50", "linear_trained": str(accuracy)}
                rows.append({**columns, "diverged": ""})
    table = pd.DataFrame(rows)
    pools = {"mine": {"default": "a", "among": ["b", "a", "c"]}}
    regret = choosing.regrets(table, pools, bootstrap=False)[0, 0].mean(1)
    means = dict(zip(choosing.WAYS, regret))
    assert means["loss"] == 0
    assert means["outputs: effective rank of the target"] == pytest.approx(40, abs=0.2)
    assert means[choosing.DEFAULT] == pytest.approx(20, abs=0.2)
    assert means[choosing.RANDOM] == pytest.approx(10, abs=0.2)  # c has collapsed
    assert choosing.taus(table)["loss"] == pytest.approx(1)
