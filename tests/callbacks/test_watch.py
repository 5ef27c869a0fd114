"""The watch: what it warns of and what not, in whose words, and that it can end a run."""

from __future__ import annotations

import json
import logging
import math
from dataclasses import asdict

import pytest
import torch
from hydra import compose, initialize_config_dir
from omegaconf import open_dict
from support.small_runs import SMALL, configure, rows, run

from rdm_solo import train
from rdm_solo.callbacks import CollapseWatch
from rdm_solo.callbacks.advice import advice
from rdm_solo.cli import config_folder
from rdm_solo.spectra.collapse import (
    COMPLETE,
    DIMENSIONAL,
    FOUND,
    RISING,
    UNIFORM,
    WRONG_WAY,
    Bounds,
    MeasuredEpoch,
    kinds_of_collapse,
    states,
)
from rdm_solo.train import checks

# Variance over second moment, and effective rank around the mean, epoch by epoch. The target filter
# and the wrong way round were measured (warm-up 3); the other two are made up.
GOOD = {
    "SimSiam with a target filter": (
        [0.999, 0.992, 0.973, 0.962, 0.941, 0.937, 0.929, 0.908],
        [27.0, 11.9, 3.69, 2.91, 3.01, 3.30, 3.28, 3.52],
    ),
    "a few directions that become more": ([0.3] * 8, [9.0, 1.2, 1.3, 1.5, 1.7, 1.9, 2.1, 2.3]),
}
BAD = {
    "a linear predictor": ([0.335, 0.014, 0.011, 0.010, 0.010], [7.5, 8.1, 9.2, 9.8, 10.0]),
    "a filter the wrong way round": (
        [0.994, 0.986, 0.967, 0.940, 0.917, 0.908, 0.863, 0.861],
        [35.0, 10.2, 3.54, 2.55, 2.07, 1.79, 1.58, 1.47],
    ),
}


def epochs(variance, erank, gap=0.3, **more):
    pairs = enumerate(zip(variance, erank), start=1)
    return [MeasuredEpoch(epoch, v, e, 32, gap, **more) for epoch, (v, e) in pairs]


def warned(history, bounds) -> set[str]:
    """Every kind that is found while the epochs pass."""
    return {
        kind for n in range(1, len(history) + 1) for kind in kinds_of_collapse(history[:n], bounds)
    }


class TestRules:
    @pytest.mark.parametrize("name", GOOD)
    def test_what_learns_is_left_alone(self, name):
        assert warned(epochs(*GOOD[name]), Bounds(warmup=3)) == set()

    @pytest.mark.parametrize(("name", "kind"), list(zip(BAD, [COMPLETE, DIMENSIONAL])))
    def test_what_collapses_is_named(self, name, kind):
        history = epochs(*BAD[name])
        assert warned(history, Bounds(warmup=3)) == {kind}
        off = {"variance": None} if kind == COMPLETE else {"erank": 0}
        assert warned(history, Bounds(warmup=3, **off)) == set()

    def test_the_warm_up_and_a_single_epoch_are_not_judged(self):
        crash = epochs([0.01] * 4, [1.0] * 4)
        assert warned(crash, Bounds(warmup=3)) == set()
        assert warned(crash, Bounds(warmup=2)) == {COMPLETE}
        assert (
            warned(epochs([0.15, 0.05], [9.0] * 2), Bounds(warmup=0)) == set()
        )  # one is above 0.1

    @pytest.mark.parametrize(("start", "factor", "judged"), [(0.02, 1.2, False), (1e-5, 1.2, True)])
    def test_what_passes_its_bound_soon_is_not_judged(self, start, factor, judged):
        rising = epochs([start * factor**n for n in range(3)], [9.0] * 3)
        assert states(rising, Bounds(warmup=0)) == {COMPLETE: FOUND if judged else RISING}
        assert warned(rising, Bounds(warmup=0)) == ({COMPLETE} if judged else set())

    @pytest.mark.parametrize(("last", "kinds"), [(4, []), (5, [COMPLETE])])
    def test_three_epochs_are_not_judged_by_default(self, last, kinds):
        history = [MeasuredEpoch(epoch, 0.001, 9.0, 32, 0.0) for epoch in (last - 1, last)]
        assert kinds_of_collapse(history, Bounds()) == kinds

    def test_a_rank_is_judged_whatever_the_mean_carries(self):
        assert warned(epochs([0.19] * 4, [1.02] * 4), Bounds(warmup=0)) == {DIMENSIONAL}
        assert warned(epochs([0.15] * 4, [4.6] * 4), Bounds(warmup=0)) == set()

    @pytest.mark.parametrize(
        ("k", "few", "enough"), [(4, 1.9, 2.1), (16, 2.1, 2.3), (32, 2.1, 2.3), (2048, 4.9, 5.1)]
    )
    def test_two_directions_are_too_few_in_any_space_and_more_in_a_large_one(self, k, few, enough):
        for rank, kinds in ((few, [DIMENSIONAL]), (enough, [])):
            history = [MeasuredEpoch(epoch, 0.99, rank, k, 0.0) for epoch in (8, 9)]
            assert kinds_of_collapse(history, Bounds(warmup=0)) == kinds

    def test_directions_of_what_is_hardly_there_are_not_judged(self):
        assert warned(epochs([0.001] * 4, [1.0] * 4), Bounds(warmup=0)) == {COMPLETE}

    def test_a_variance_that_rises_along_one_direction_is_a_dimensional_collapse(self):
        """DINO without batch norm, measured: its kNN accuracy stayed below the untrained one."""
        rising = epochs([0.0022, 0.0077, 0.0168, 0.0251], [1.07, 1.04, 1.02, 1.01])
        assert warned(rising, Bounds(warmup=0)) == {DIMENSIONAL}

    @pytest.mark.parametrize(
        ("assigned", "kinds"), [(1.1, {UNIFORM}), (1.3, set()), (math.nan, set())]
    )
    def test_a_softmax_that_assigns_all_images_alike_is_named(self, assigned, kinds):
        history = epochs([0.5] * 4, [9.0] * 4, assigned=assigned)
        assert warned(history, Bounds(warmup=0)) == kinds
        assert warned(history, Bounds(warmup=0, variance=None)) == set()
        assert warned(epochs([0.01] * 4, [9.0] * 4, assigned=1.0), Bounds(warmup=0)) == {COMPLETE}

    def test_the_gap_must_be_negative_in_a_row(self):
        flat = [0.9] * 6, [9.0] * 6
        assert warned(epochs(*flat, gap=-0.01), Bounds(warmup=0, gap_epochs=6)) == {WRONG_WAY}
        assert warned(epochs(*flat, gap=-0.01), Bounds(warmup=0, gap_epochs=7)) == set()
        assert warned(epochs(*flat, gap=-0.01), Bounds(warmup=0, gap_epochs=0)) == set()
        assert warned(epochs(*flat, gap=-1e-6), Bounds(warmup=0)) == set()  # symmetric, to rounding
        broken = [*epochs(*flat, gap=-0.1)[:2], MeasuredEpoch(2, 0.9, 9, 32, 0.1)]
        assert warned([*broken, *broken[:2]], Bounds(warmup=0)) == set()


class TestWords:
    @pytest.mark.parametrize(
        ("kind", "overrides", "says"),
        [
            (WRONG_WAY, ["filter=target_pow", "p=0.5"], "A target filter needs p < 0"),
            (COMPLETE, ["filter=online_pow", "p=-0.5"], "An online filter needs p > 0"),
            (WRONG_WAY, ["filter=online_log"], "filter=online_log1p is one"),
            (WRONG_WAY, ["filter=learnable"], "The predictor raises the online rank"),
            (WRONG_WAY, ["filter=online_log1p", "filter.function=torch.cos"], "must rise on"),
            (WRONG_WAY, ["filter=target_pow", "p=-2"], "With p=-2, below -1, sigma^-1 falls"),
            (COMPLETE, ["filter=online_pow", "p=-2"], "between -1 and 0 on the target"),
            (WRONG_WAY, ["method=byol", "filter=target_pow"], "lower method.momentum.base_tau"),
            (WRONG_WAY, ["method=byol", "filter=online_log1p"], "lower method.momentum.base_tau"),
            (WRONG_WAY, ["filter=online_pow", "p=1"], "a few very long rows"),
            (WRONG_WAY, ["filter=target_pow"], "a few very long rows"),
            (WRONG_WAY, ["method=byol", "filter=identity"], "the target network's lag alone"),
            (DIMENSIONAL, ["method=byol", "filter=identity"], "the target network's lag alone"),
            (COMPLETE, ["method=nnsiam", "filter=identity"], "only the queue"),
            (DIMENSIONAL, ["method=nnbyol", "filter=identity"], "the target network's lag, too"),
            (WRONG_WAY, ["method=nnsiam", "filter=target_pow"], "a smaller method.kwargs.queue_s"),
            (WRONG_WAY, ["method=nnbyol", "filter=target_pow"], "lower method.momentum.base_tau"),
            (DIMENSIONAL, ["method=symsimsiam"], "by design: both branches are alike"),
            (COMPLETE, ["method=vanilla", "method.last_bn=false"], "method.last_bn=true"),
            (COMPLETE, ["method=symsimsiam", "method.last_bn=false"], "method.last_bn=true"),
            (DIMENSIONAL, ["filter=identity"], "filter=identity does this by design"),
            (COMPLETE, ["filter=linear"], "optimizer.lr=0.5 and 6 of 30 epochs"),
            (DIMENSIONAL, ["filter=online_log1p"], "weak under strong augmentation"),
            (DIMENSIONAL, ["filter=target_pow", "p=-0.3"], "p=-0.3 is a weak filter"),
            (DIMENSIONAL, ["filter=target_pow", "batch_size=32"], "less than twice the 32 output"),
            (COMPLETE, ["method=byol"], "raise method.momentum.base_tau (now 0.99)"),
            (COMPLETE, ["method=swav"], "method.kwargs.sk_iters"),
            (UNIFORM, ["method=swav"], "method.kwargs.sk_iters"),
            (COMPLETE, ["method=dino"], "method.centring"),
        ],
    )
    def test_the_cause_is_the_runs_own(self, kind, overrides, says):
        with initialize_config_dir(str(config_folder()), version_base="1.3"):
            cfg = compose("config", overrides=overrides)
        assert says in advice(kind, cfg, cfg.batch_size)

    @pytest.mark.parametrize("kind", [COMPLETE, DIMENSIONAL, WRONG_WAY])
    @pytest.mark.parametrize(
        "setting",
        [
            *(f"method={name}" for name in ("swav", "dino", "symsimsiam", "vanilla")),
            *(
                f"method={method} filter={chosen}"
                for method in ("simsiam", "byol", "nnsiam", "nnbyol")
                for chosen in ("learnable", "linear", "identity", "online_log", "online_pow p=1")
            ),
            *(
                f"method={method} filter={chosen}_pow p={p}"
                for method in ("simsiam", "byol", "nnsiam", "nnbyol")
                for chosen, p in (("target", -0.5), ("target", -2), ("online", 0.3))
            ),
        ],
    )
    def test_nobody_is_told_to_do_what_the_run_does(self, setting, kind):
        """Neither an exponent's sign that it has, nor the method or filter that it is."""
        typed = setting.split()
        with initialize_config_dir(str(config_folder()), version_base="1.3"):
            cfg = compose("config", overrides=typed)
        said = advice(kind, cfg, cfg.batch_size)
        p = cfg.p
        assert not ("needs p < 0" in said and p is not None and p < 0)
        assert not ("needs p > 0" in said and p is not None and p > 0)
        assert f"or method={cfg.method.name}" not in said
        assert f"{cfg.filter.name} p={p} is a good start" not in said

    def test_a_symmetric_method_need_not_have_our_options(self):
        cfg = configure("method=symsimsiam")
        with open_dict(cfg):
            del cfg.method.last_bn
        assert "by design: both branches are alike" in advice(COMPLETE, cfg, 64)

    def test_a_schedule_of_p_is_judged_where_it_is(self):
        cfg = configure("filter=target_pow", "p={schedule: linear, start: -1, end: 1}")
        assert "sigma^1" in advice(WRONG_WAY, cfg, 64, epoch=1)
        assert "sigma^" not in advice(WRONG_WAY, cfg, 64, epoch=0)


WRONG = [*SMALL, "filter=target_pow", "p=0.5", "max_epochs=4", "watch.gap_epochs=2"]


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stopped")
    return folder, run(folder, *WRONG, "watch.stop=true")


class TestRun:
    def test_it_ends_in_good_order_and_says_why(self, stopped):
        folder, summary = stopped
        assert len(rows(folder)) == 2
        assert summary == json.loads((folder / "summary.json").read_text())
        assert summary["stopped"] == "watch.stop: negative gap in epoch 2"
        (warning,) = summary["warnings"]
        assert (warning["kind"], warning["epoch"]) == (WRONG_WAY, 2)
        assert "p < 0" in warning["text"]
        assert math.isfinite(summary["last"]["erank/gap"])
        checkpoint = torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)
        assert checkpoint["epoch"] == 1

    def test_a_resumed_run_warns_of_what_is_new_only(self, stopped, tmp_path, caplog):
        folder, before = stopped
        with caplog.at_level(logging.WARNING, "rdm_solo"):
            after = run(tmp_path, *WRONG, f"resume={folder}")
        assert [row["epoch"] for row in rows(tmp_path)] == [1, 2, 3, 4]
        assert not [r for r in caplog.records if "negative gap" in r.message]
        assert after["warnings"] == before["warnings"]
        assert after["stopped"] is None

    def test_a_resumed_run_counts_the_epochs_before(self, tmp_path):
        """Three epochs in a row are found where the run was cut after two of them, and the text
        gives p as it is in the third."""
        scheduled = "p={schedule: linear, start: 0.1, end: 0.9, epochs: 5}"
        options = [*WRONG, scheduled, "watch.gap_epochs=3"]
        run(tmp_path / "cut", *options, "max_epochs=2")
        after = run(tmp_path / "on", *options, "max_epochs=3", f"resume={tmp_path / 'cut'}")
        (warning,) = after["warnings"]
        assert (warning["kind"], warning["epoch"]) == (WRONG_WAY, 3)
        assert "sigma^0.5 " in warning["text"]  # 0.1, 0.3, 0.5

    def test_checkpoints_of_earlier_versions_keep_their_warnings(self):
        watch = CollapseWatch(configure(*WRONG), {})
        warning = {"kind": WRONG_WAY, "epoch": 1, "text": "negative gap in epoch 2"}
        known = asdict(MeasuredEpoch(1, 0.3, 5.0, 32, -0.1))
        watch.load_state_dict({"warnings": [warning], "readings": [known]})  # epochs from 0
        assert [entry["epoch"] for entry in watch.warnings] == [2]
        watch.load_state_dict(
            {"format": 2, "warnings": [warning], "readings": [{**known, "softmax": False}]}
        )
        assert (watch.warnings, watch.alarm.measured) == ([warning], [])
        watch.alarm.measured = [MeasuredEpoch(**known)]
        state = watch.state_dict()
        watch.load_state_dict(state)
        assert watch.state_dict() == state
        assert state["readings"] == [known]

    def test_a_sample_of_rows_has_the_outputs_dimension(self, tmp_path):
        cfg = configure(*WRONG, "diagnostics.max_dim=8", "diagnostics.sample=4", "max_epochs=1")
        parts = train.build(cfg, tmp_path)
        parts.trainer.fit(parts.model, datamodule=parts.data)
        (watch,) = (c for c in parts.trainer.callbacks if isinstance(c, CollapseWatch))
        assert [epoch.dimensions for epoch in watch.alarm.measured] == [16]

    def test_an_epoch_of_nan_is_left_out_and_outputs_that_are_all_zero_have_collapsed(
        self, tmp_path
    ):
        parts = train.build(configure(*WRONG, "max_epochs=1"), tmp_path)
        parts.trainer.fit(parts.model, datamodule=parts.data)
        (watch,) = (c for c in parts.trainer.callbacks if isinstance(c, CollapseWatch))
        watch.on_train_epoch_end(parts.trainer, parts.model)
        assert len(watch.alarm.measured) == 2
        watch.alarm.measured = []
        seen = parts.trainer.callback_metrics
        seen["feature/spread"] = torch.tensor(math.nan)
        watch.on_train_epoch_end(parts.trainer, parts.model)
        assert watch.alarm.measured == []
        for name in ("feature/spread", "erank/centred", "erank/online", "erank/target"):
            seen[name] = torch.tensor(0.0)
        for _ in range(2):
            watch.on_train_epoch_end(parts.trainer, parts.model)
        assert COMPLETE in [warning["kind"] for warning in watch.warnings]

    def test_switched_off_it_says_nothing(self, tmp_path, caplog):
        off = ["watch.gap_epochs=null", "watch.variance=0", "watch.erank=null", "max_epochs=2"]
        with caplog.at_level(logging.WARNING, "rdm_solo"):
            summary = run(tmp_path, *WRONG, *off, "watch.stop=true")
        assert (summary["warnings"], summary["stopped"]) == ([], None)
        assert len(rows(tmp_path)) == 2

    def test_without_spectra_there_is_nothing_to_watch(self, tmp_path):
        off = ["diagnostics.every_n_epochs=0", "max_epochs=1", "watch.gap_epochs=1"]
        assert run(tmp_path, *WRONG, *off)["warnings"] == []


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("watch.variance=2", "watch.variance must be a number from 0 to 1"),
        ("watch.erank=low", "watch.erank must be a number from 0 to 1"),
        ("watch.gap_epochs=1.5", "watch.gap_epochs must be a whole number of at least 0"),
        ("watch.stop=maybe", "watch.stop must be true or false, got 'maybe'"),
        ("watch.stop=true diagnostics.every_n_epochs=0", "watch.stop=true would be ignored"),
    ],
)
def test_bounds_that_mean_nothing_are_refused(override, says):
    with pytest.raises(ValueError, match=says):
        checks.check(configure(*override.split()))


def test_the_watch_stands_behind_what_it_reads(tmp_path):
    names = [
        type(callback).__name__
        for callback in train.build(configure(*SMALL), tmp_path).trainer.callbacks
    ]
    assert names.index("Diagnostics") < names.index("CollapseWatch")
