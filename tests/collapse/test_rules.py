"""The rules of collapse: what warns and what does not, the advice, and runs that are watched."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from support.small_runs import SMALL, CutInEpoch, all_rows, checkpoint, configure, rows, run

from rdm_solo.collapse.advice import advice
from rdm_solo.collapse.rules import (
    BELOW_UNTRAINED,
    COMPLETE,
    DESTROYED,
    DIMENSIONAL,
    FEW_FEATURES,
    RULE,
    RULES,
    STUCK,
    WRONG_WAY,
    Bounds,
    MeasuredEpoch,
    kinds_of_collapse,
)
from rdm_solo.train import compose

# Variance over second moment, and effective rank around the mean, epoch by epoch. The linear
# predictor is made up, the others were measured (warm-up 3).
GOOD = (  # SimSiam with a target filter
    [0.999, 0.992, 0.973, 0.962, 0.941, 0.937, 0.929, 0.908],
    [27.0, 11.9, 3.69, 2.91, 3.01, 3.30, 3.28, 3.52],
)
BAD = {
    "a linear predictor": ([0.335, 0.014, 0.011, 0.010, 0.010], [7.5, 8.1, 9.2, 9.8, 10.0]),
    "a filter the wrong way round": (
        [0.994, 0.986, 0.967, 0.940, 0.917, 0.908, 0.863, 0.861],
        [35.0, 10.2, 3.54, 2.55, 2.07, 1.79, 1.58, 1.47],
    ),
}


def test_only_a_destroyed_encoder_is_a_warning():
    """The other rules give notes, because too many healthy runs meet them."""
    assert [rule.kind for rule in RULES if not rule.note] == [DESTROYED]


def epochs(variance, erank, gap=0.3, **more):
    pairs = enumerate(zip(variance, erank), start=1)
    return [MeasuredEpoch(epoch, v, e, 32, gap, **more) for epoch, (v, e) in pairs]


def warned(history, bounds) -> set[str]:
    """Return every kind that is found while the epochs pass."""
    return {
        kind for n in range(1, len(history) + 1) for kind in kinds_of_collapse(history[:n], bounds)
    }


@pytest.mark.parametrize(
    ("shares", "kinds"),
    [
        ([1.0] * 5, {STUCK}),  # in the warm-up and after it
        ([1.0, 1.0, 1.0, 0.998, 0.99, 0.998, 0.99], set()),  # never twice in a row
        ([0.9, 0.9, 0.9, 0.9, 1.004, 1.004], {STUCK}),
    ],
)
def test_a_loss_that_stays_at_ln_k_is_stuck(shares, kinds):
    history = [replace(now, loss_share=x) for now, x in zip(epochs([0.9] * 7, [9.0] * 7), shares)]
    assert warned(history, Bounds(warmup=3)) == kinds
    assert warned(history, Bounds(warmup=3, loss=None)) == set()


class TestRules:
    def test_a_run_that_learns_is_left_alone(self):
        assert warned(epochs(*GOOD), Bounds(warmup=3)) == set()

    @pytest.mark.parametrize(("name", "kind"), list(zip(BAD, [COMPLETE, DIMENSIONAL])))
    def test_a_collapse_is_named_unless_its_rule_is_off(self, name, kind):
        history = epochs(*BAD[name])
        assert warned(history, Bounds(warmup=3)) == {kind}
        off = {"spread": None} if kind == COMPLETE else {"erank": 0}
        assert warned(history, Bounds(warmup=3, **off)) == set()

    def test_the_warm_up_and_a_single_epoch_are_not_judged(self):
        crash = epochs([0.01] * 4, [1.0] * 4)
        assert warned(crash, Bounds(warmup=3)) == set()
        assert warned(crash, Bounds(warmup=2)) == {COMPLETE}
        assert warned(crash[:3], Bounds()) == set()
        assert warned(epochs([0.15, 0.05], [9.0] * 2), Bounds(warmup=0)) == set()

    def test_epochs_that_were_not_measured_are_skipped(self):
        history = epochs([0.01, math.nan, 0.01], [9.0, math.nan, 9.0])
        assert warned(history[:2], Bounds(warmup=0)) == set()
        assert warned(history, Bounds(warmup=0)) == {COMPLETE}

    def test_a_rise_within_noise_delays_no_report(self):
        ranks = [2.153, 2.163, 2.173, 2.156]  # measured; the bound is 2.2
        assert kinds_of_collapse(epochs([0.9] * 2, ranks[:2]), Bounds(warmup=0)) == [DIMENSIONAL]

    @pytest.mark.parametrize(
        ("k", "few", "enough"), [(4, 1.9, 2.1), (16, 2.1, 2.3), (32, 2.1, 2.3), (2048, 4.9, 5.1)]
    )
    def test_two_directions_are_too_few_in_any_space_and_more_in_a_large_one(self, k, few, enough):
        for rank, kinds in ((few, [DIMENSIONAL]), (enough, [])):
            history = [MeasuredEpoch(epoch, 0.99, rank, k, 0.0) for epoch in (8, 9)]
            assert kinds_of_collapse(history, Bounds(warmup=0)) == kinds

    def test_directions_are_not_judged_after_a_complete_collapse(self):
        assert warned(epochs([0.001] * 4, [1.0] * 4), Bounds(warmup=0)) == {COMPLETE}

    def test_features_in_few_directions(self):
        history = [MeasuredEpoch(e, 0.5, 9.0, 32, 0.0, features=1.9) for e in range(1, 6)]
        assert warned(history, Bounds(warmup=3)) == {FEW_FEATURES}
        assert warned(history[:4], Bounds(warmup=3)) == set()
        assert warned(history, Bounds(warmup=3, features=1.8)) == set()

    def test_the_gap_must_be_negative_in_a_row(self):
        def gaps(*values):
            history = [MeasuredEpoch(1, 0.9, 9.0, 32, gap) for gap in values]
            return lambda **bounds: warned(history, Bounds(warmup=0, **bounds))

        behind = gaps(*[-0.01] * 6)
        assert behind(gap_epochs=6) == {WRONG_WAY}
        assert behind(gap_epochs=7) == behind(gap_epochs=0) == behind(gap_epochs=None) == set()
        assert gaps(*[-1e-6] * 6)() == set()  # symmetric, to rounding
        assert gaps(-0.1, -0.1, 0.1, -0.1, -0.1)() == set()


def accuracies(knn=(), online=(), classes=10):
    """Return epochs with these accuracies alone; None where one was not measured."""
    columns = {"val/knn_acc1": knn, "val/acc1": online}
    return [
        MeasuredEpoch.read(
            {name: x[n] for name, x in columns.items() if x and x[n] is not None},
            n + 1,
            classes=classes,
        )
        for n in range(max(len(knn), len(online)))
    ]


@pytest.mark.parametrize(
    ("untrained", "knn", "kinds"),
    [
        (40, [39, 39, 39, 39], {BELOW_UNTRAINED}),
        (40, [39, 39, 39, 40], set()),
        (40, [41, 39, 41, 39], set()),  # two in a row
        (40, [39, 39, 41, 39], set()),  # the first two are in the warm-up
        (40, [41, 41, 39, None, 39], {BELOW_UNTRAINED}),
        (None, [39, 39, 39, 39], set()),
    ],
)
def test_an_accuracy_below_that_of_the_untrained_network(untrained, knn, kinds):
    first = [] if untrained is None else [MeasuredEpoch.read({"val/knn_acc1": untrained}, 0)]
    history = [*first, *accuracies(knn)]
    assert warned(history, Bounds(warmup=2)) == kinds
    assert warned(history, Bounds(warmup=2, untrained=None)) == set()
    assert warned(history, Bounds(warmup=2, untrained=-2)) == set()


# Measured: SimSiam with a target filter, five epochs of eight steps, one of them warm-up.
AT_1E4 = [76.7, 78.6, 29.2, 10.0, 16.9], [7.5, 10.6, 10.0, 10.8, 8.1]
AT_1E6_IN_BF16 = [78.1, 79.4, 62.5, 35.3, 26.1], [7.5, 11.4, 11.1, 10.8, 10.0]
AT_30 = [80.6, 77.8, 81.1, 88.1, 87.5], [10.0, 25.8, 31.7, 48.9, 51.4]


class TestDestroyedEncoder:
    @pytest.mark.parametrize(("knn", "online"), [AT_1E4, AT_1E6_IN_BF16])
    @pytest.mark.parametrize("measured", ["every", "seldom", "never"])
    def test_it_is_named_however_often_knn_is_measured(self, knn, online, measured):
        kept = {"every": knn, "seldom": [knn[0], None, None, None, knn[4]], "never": ()}[measured]
        history = accuracies(kept, online)
        assert warned(history, Bounds(warmup=1)) == {DESTROYED}
        assert kinds_of_collapse(history, Bounds(warmup=1)) == [DESTROYED]
        assert warned(history, Bounds(warmup=1, accuracy=None)) == set()

    def test_a_high_rate_that_trains_well_is_left_alone(self):
        assert warned(accuracies(*AT_30), Bounds(warmup=1)) == set()

    @pytest.mark.parametrize(
        ("classes", "last", "kinds"),
        [(10, 51, set()), (10, 49, {DESTROYED}), (2, 72, set()), (2, 69, {DESTROYED})],
    )
    def test_the_share_is_counted_from_chance(self, classes, last, kinds):
        """Half way from 10 % to 90 % is 50 %; from 50 % to 90 %, 70 %."""
        assert warned(accuracies([90, last], classes=classes), Bounds()) == kinds

    def test_without_a_number_of_classes_the_share_is_of_the_accuracy_itself(self):
        assert warned(accuracies([90, 46], classes=None), Bounds()) == set()
        assert warned(accuracies([90, 44], classes=None), Bounds()) == {DESTROYED}
        assert warned(accuracies([0] * 6, classes=None), Bounds()) == set()

    def test_chance_counts_after_the_warm_up_alone(self):
        never = accuracies(online=[10.0] * 4)
        assert warned(never, Bounds(warmup=4)) == set()
        assert warned(never, Bounds(warmup=2)) == {DESTROYED}
        slow = accuracies(online=[12.0, 10.5, 10.5, 14.0])  # noise around chance in the warm-up
        assert warned(slow, Bounds(warmup=3)) == set()

    def test_one_online_accuracy_decides_nothing(self):
        assert warned(accuracies(online=[80, 20, 80, 20]), Bounds()) == set()
        assert warned(accuracies(online=[80, 20, 20]), Bounds()) == {DESTROYED}

    @pytest.mark.parametrize("classes", [1, 10])
    def test_data_without_labels_are_not_judged(self, classes):
        assert warned(accuracies([math.nan] * 6, classes=classes), Bounds()) == set()
        assert warned(accuracies([100] * 6, classes=1), Bounds()) == set()


def test_the_config_and_the_documentation_state_the_rules():
    watch = compose([]).watch
    assert {rule.option: watch[rule.option] for rule in RULES} == {
        rule.option: getattr(Bounds(), rule.option) for rule in RULES
    }
    text = Path("docs/read-the-figures.md").read_text()
    for rule in RULES:
        assert f"| {rule.kind} | {rule.definition} | `watch.{rule.option}` |" in text


class TestAdvice:
    @pytest.mark.parametrize(
        ("kind", "overrides", "cause"),
        [
            (WRONG_WAY, ["filter=target_pow", "p=0.5"], "points the wrong way.*p < 0"),
            (COMPLETE, ["filter=online_pow", "p=-0.5"], "points the wrong way.*p > 0"),
            (WRONG_WAY, ["filter=online_log"], "filter=online_log1p"),
            (COMPLETE, ["filter=online_pow", "p=-2"], "between -1 and 0 on the target"),
            (DIMENSIONAL, ["method=symsimsiam"], "method=symsimsiam has this effect by design"),
            (COMPLETE, ["filter=linear"], "optimizer.lr=0.5 and scheduler.warmup_epochs=6 of 30"),
            (DIMENSIONAL, ["filter=online_log1p"], "weak under strong augmentation"),
            (DIMENSIONAL, ["filter=target_pow", "p=-0.3"], "p=-0.3 is a weak filter"),
            (STUCK, ["method=swav"], "method.kwargs.sk_iters"),
            (DESTROYED, ["filter=identity", "optimizer.lr=100"], "Here optimizer.lr=100"),
        ],
    )
    def test_the_cause_is_in_the_runs_own_setting(self, kind, overrides, cause):
        cfg = compose(overrides)
        assert re.search(cause, advice(kind, cfg))

    @pytest.mark.parametrize(
        "options",
        ["filter=learnable", "filter=target_pow p=-0.5", "method=byol filter=online_pow p=1"],
    )
    def test_no_advice_recommends_what_the_run_does(self, options):
        cfg = compose(options.split())
        for rule in RULES:
            text = advice(rule.kind, cfg)
            assert "points the wrong way" not in text
            assert f"or method={cfg.method.name}" not in text
            assert f"filter={cfg.filter.name} p={cfg.p} is a good start" not in text

    def test_a_schedule_of_p_is_judged_where_it_is(self):
        cfg = configure("filter=target_pow", "p={schedule: linear, start: -1, end: 1}")
        assert "points the wrong way" in advice(WRONG_WAY, cfg, epoch=1)
        assert "points the wrong way" not in advice(WRONG_WAY, cfg, epoch=0)


WRONG = [*SMALL, "filter=target_pow", "p=0.5", "max_epochs=4", "watch.gap_epochs=2"]


class TestRun:
    def test_a_stopped_run_writes_its_files_and_says_why(self, tmp_path):
        high = ["optimizer.lr=1e4", "watch.accuracy=0.7"]
        summary = run(tmp_path, *SMALL, *high, "max_epochs=4", "watch.stop=true")
        assert len(rows(tmp_path)) == 1
        assert summary == json.loads((tmp_path / "summary.json").read_text())
        assert summary["stopped"] == "watch.stop: destroyed encoder in epoch 1"
        (warning,) = summary["warnings"]
        assert (warning["kind"], warning["epoch"]) == (DESTROYED, 1)
        assert "Here optimizer.lr=10000" in warning["text"]
        assert checkpoint(tmp_path)["epoch"] == 0

    def test_a_resumed_run_counts_the_epochs_before_and_warns_once(self, tmp_path, caplog):
        """Three epochs in a row, of which the run was cut after two. A note stops no run."""
        options = [*WRONG, "watch.gap_epochs=3", "watch.stop=true"]
        for epoch in (3, 4):
            with pytest.raises(RuntimeError, match="killed"):
                run(tmp_path, *options, callbacks=[CutInEpoch(epoch)])
        summary = run(tmp_path, *options)
        assert summary["stopped"] is None
        (warning,) = [each for each in summary["warnings"] if each["kind"] == WRONG_WAY]
        assert (warning["kind"], warning["epoch"]) == (WRONG_WAY, 3)
        assert caplog.text.count("note: negative gap") == 1

    def test_what_is_read_of_an_epoch_is_what_the_table_says(self, tmp_path):
        """Also without spectra in every epoch, and of a sample of rows."""
        seldom = ["diagnostics.every_n_epochs=2", "diagnostics.max_dim=8", "diagnostics.sample=4"]
        run(tmp_path, *WRONG, *seldom, "max_epochs=3")
        measured = checkpoint(tmp_path)["callbacks"]["CollapseWatch"]["measured"]
        assert [epoch["dimensions"] for epoch in measured] == [16, 16, 0, 16]
        for row, epoch in zip(all_rows(tmp_path), measured, strict=True):
            dimensions = 16 if "erank/online" in row else 0
            read = MeasuredEpoch.read(row, int(row["epoch"]), dimensions=dimensions, classes=10)
            assert repr(MeasuredEpoch(**epoch)) == repr(read)  # NaN equals NaN
