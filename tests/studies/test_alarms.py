"""The study of the warnings: its data, its label, its judgement, and a run of it."""

import math

import pytest
import torch
from conftest import ROOT
from support.small_runs import train_study

from rdm_solo.collapse.rules import BELOW_UNTRAINED
from studies import table, training
from studies.alarms import choosing, data, judging, measures, outcome, page, plan, runs

RECORDED = table.read(ROOT / "studies" / "alarms" / "runs.csv")


def row(gain: float, knn: list[float], setting: str = "healthy, simsiam") -> dict[str, str]:
    """A run of eight epochs with kNN in every second one, whose linear accuracy gained this."""
    series = {name: [math.nan] * 9 for name in runs.READ}
    series["val/knn_acc1"] = [knn[0]] + [x for value in knn[1:] for x in (math.nan, value)]
    about = {"method": "simsiam", "data": "digits", "dimensions": "32", "diverged": ""}
    accuracy = {"linear_untrained": "50", "linear_trained": str(50 + gain)}
    cells = {name: table.joined(values) for name, values in series.items()}
    return {**about, "setting": setting, **accuracy, **cells}


def test_the_recorded_pages_are_those_of_the_recorded_table_and_of_the_package():
    assert page.page(RECORDED) == (ROOT / "docs/collapse.md").read_text(encoding="utf-8")
    assert page.appendix(RECORDED) == page.APPENDIX.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("knn", "epoch"),
    [
        ([30, 20, 20, 20, 20], 6),  # epoch 2 is in the warm-up
        ([30, 40, 40, 20, 20], 8),
        ([30, 40, 20, 40, 20], None),  # two in a row
        ([30, 40, 40, 40, 40], None),
        ([30, 30, 30, 30, 30], None),
    ],
)
def test_below_the_untrained_network(knn, epoch):
    recorded = row(0, knn)
    assert page.only(BELOW_UNTRAINED)(recorded) == epoch
    assert judging.below("val/knn_acc1", lambda untrained: untrained)(recorded) == epoch


def test_rates_and_precision():
    """Two of three collapses and one of four healthy runs: 0.1 * 2/3 to 0.9 * 1/4."""
    bad, good = [30, 9, 9, 9, 9], [30, 50, 50, 50, 50]
    rows = [row(-9, bad), row(-9, bad, "b"), row(1.9, good), row(2.1, bad, "c")]
    rows += [row(9, good) for _ in range(3)]
    judged = judging.judge(rows, page.only(BELOW_UNTRAINED))
    rates = judging.rates(judged)
    assert rates == (2, 3, 1, 4)
    assert rates.precision == pytest.approx((0.2 / 3) / (0.2 / 3 + 0.225))
    low, high = judging.intervals(judged)["detected"]
    assert low <= 200 / 3 <= high
    assert low < high


def test_held_out_images_are_in_no_other_part():
    for name in ("textures", "angles", "digits"):
        train, labelled = data.source(name), data.labelled(name, 1920)
        assert torch.equal(train.train.images, labelled.train.images)
        seen = {
            bytes(x) for part in (train.train, train.val) for x in part.images.flatten(1).numpy()
        }
        held_out = [bytes(x) for x in labelled.val.images.flatten(1).numpy()]
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
    runs.VERSIONS.write_text("those of another run\n")
    planned = next(run for run in plan.planned() if run.name == "test/digits/healthy, simsiam/0")
    recorded = runs.measure(planned)
    assert recorded.keys() == {*runs.HEAD}
    assert "torch=" in runs.VERSIONS.read_text().splitlines()[int(recorded["versions"]) - 1]
    assert len(table.series(recorded["val/knn_acc1"])) == plan.PLAN["epochs"] + 1
    assert not math.isnan(table.series(recorded["val/knn_acc1"])[0])
    assert 0 < float(recorded["linear_untrained"]) < 100


def test_regret_is_zero_for_the_best_pick_and_counts_from_the_best_of_the_drawn_runs(monkeypatch):
    """Loss is the accuracy with the sign turned; the rank orders the runs the other way round."""
    pool = {"mine": {"default": "a", "among": ["b", "a", "c"]}}
    monkeypatch.setattr(choosing, "POOLS", pool)
    rows = []
    for data_set in choosing.DATA:
        for setting, accuracy in (("a", 60), ("b", 80), ("c", 40)):
            for seed in range(choosing.SEEDS):
                columns = dict.fromkeys(measures.MEASURES.values(), "nan")
                columns |= {"train/loss": f"{-accuracy - seed}", "erank/target": f"{-accuracy}"}
                about = {"part": "choose", "data": data_set, "setting": setting, "diverged": ""}
                accuracies = {"linear_untrained": "50", "linear_trained": f"{accuracy + seed}"}
                rows.append({**columns, **about, **accuracies})
    regret = choosing.regrets(rows, bootstrap=False)["mine", choosing.DATA[0]]
    means = dict(zip(choosing.WAYS, regret.mean(1)))
    assert means["loss"] == 0
    assert means["outputs: effective rank of the target"] == pytest.approx(40, abs=0.2)
    assert means[choosing.DEFAULT] == pytest.approx(20, abs=0.2)
    assert means[choosing.RANDOM] == pytest.approx(10, abs=0.2)  # c has collapsed
    assert measures.tau("loss", rows) == pytest.approx(1)
