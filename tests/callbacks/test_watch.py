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
    WRONG_WAY,
    Bounds,
    MeasuredEpoch,
    kinds_of_collapse,
)
from rdm_solo.train import checks

# Variance and effective rank of the projection, as measured on digits (k = 32, warm-up 3).
GOOD = {
    "a target filter that is weak, and recovers": (
        [0.21, 0.058, 0.062, 0.067, 0.073, 0.083, 0.094, 0.11, 0.12, 0.15],
        [2.77, 1.35, 1.45, 1.46, 1.51, 1.58, 1.64, 1.70, 1.73, 1.88],
    ),
    "an online filter whose rank crashes first": (
        [0.255, 0.113, 0.191, 0.224, 0.262, 0.29, 0.32, 0.336, 0.35, 0.396],
        [3.31, 1.65, 1.97, 2.17, 2.45, 2.65, 2.83, 2.94, 3.04, 3.42],
    ),
    "a predictor": ([0.996] * 6, [23.07, 10.03, 6.20, 4.99, 4.75, 4.62]),
}
BAD = {
    "a linear predictor": ([0.335, 0.014, 0.011, 0.010, 0.010], [4.19, 1.12, 1.09, 1.09, 1.08]),
    "two branches alike": ([0.995, 0.987, 0.94, 0.85, 0.69], [19.2, 5.12, 2.75, 2.04, 1.72]),
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
        assert warned(epochs([0.05, 0.02], [9.0] * 2), Bounds()) == set()  # one is above 0.03

    def test_what_is_on_its_way_up_is_not_judged(self):
        rising = epochs([0.01 * 1.2**n for n in range(5)], [1.0] * 5)
        assert warned(rising, Bounds()) == set()
        assert warned(epochs([0.01 * 1.05**n for n in range(5)], [1.0] * 5), Bounds())

    def test_the_rank_of_a_softmax_is_that_of_its_mean(self):
        flat = [0.5] * 4, [1.5] * 4
        assert warned(epochs(*flat), Bounds()) == {DIMENSIONAL}
        assert warned(epochs(*flat, softmax=True), Bounds()) == set()

    def test_the_gap_must_be_negative_in_a_row(self):
        flat = [0.9] * 6, [9.0] * 6
        assert warned(epochs(*flat, gap=-0.01), Bounds(gap_epochs=6)) == {WRONG_WAY}
        assert warned(epochs(*flat, gap=-0.01), Bounds(gap_epochs=7)) == set()
        assert warned(epochs(*flat, gap=-0.01), Bounds(gap_epochs=0)) == set()
        assert warned(epochs(*flat, gap=-1e-6), Bounds()) == set()  # symmetric, to rounding
        broken = [*epochs(*flat, gap=-0.1)[:2], MeasuredEpoch(2, 0.9, 9, 32, 0.1)]
        assert warned([*broken, *broken[:2]], Bounds()) == set()


class TestWords:
    @pytest.mark.parametrize(
        ("kind", "overrides", "says"),
        [
            (WRONG_WAY, ["filter=target_pow", "p=0.5"], "A target filter needs p < 0"),
            (COMPLETE, ["filter=online_pow", "p=-0.5"], "An online filter needs p > 0"),
            (WRONG_WAY, ["filter=online_log"], "filter=online_log1p does"),
            (WRONG_WAY, ["filter=learnable"], "The predictor raises the online rank"),
            (WRONG_WAY, ["filter=online_log1p", "filter.function=torch.cos"], "must increase on"),
            (DIMENSIONAL, ["method=symsimsiam"], "by design: both branches are alike"),
            (COMPLETE, ["method=vanilla", "method.last_bn=false"], "method.last_bn=true"),
            (DIMENSIONAL, ["filter=identity"], "filter=identity does this by design"),
            (COMPLETE, ["filter=linear"], "optimizer.lr=0.5 and 6 of 30 epochs"),
            (DIMENSIONAL, ["filter=online_log1p"], "weak under strong augmentation"),
            (DIMENSIONAL, ["filter=target_pow", "p=-0.3"], "p=-0.3 is a weak filter"),
            (DIMENSIONAL, ["filter=target_pow", "batch_size=32"], "less than twice the 32 output"),
            (COMPLETE, ["method=byol"], "raise method.momentum.base_tau (now 0.99)"),
            (COMPLETE, ["method=swav"], "method.kwargs.sk_iters"),
            (COMPLETE, ["method=dino"], "method.centring"),
        ],
    )
    def test_the_cause_is_the_runs_own(self, kind, overrides, says):
        with initialize_config_dir(str(config_folder()), version_base="1.3"):
            cfg = compose("config", overrides=overrides)
        assert says in advice(kind, cfg, cfg.batch_size)

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

    def test_a_checkpoint_of_an_earlier_version_counts_from_0(self):
        watch = CollapseWatch(configure(*WRONG), {})
        warning = {"kind": WRONG_WAY, "epoch": 1, "text": "negative gap in epoch 2"}
        reading = asdict(MeasuredEpoch(1, 0.3, 5.0, 32, -0.1))
        watch.load_state_dict({"warnings": [warning], "readings": [reading]})
        state = watch.state_dict()
        assert [entry["epoch"] for entry in (*state["warnings"], *state["readings"])] == [2, 2]
        watch.load_state_dict(state)
        assert watch.state_dict() == state

    def test_a_sample_of_rows_has_the_outputs_dimension(self, tmp_path):
        cfg = configure(*WRONG, "diagnostics.max_dim=8", "diagnostics.sample=4", "max_epochs=1")
        parts = train.build(cfg, tmp_path)
        parts.trainer.fit(parts.model, datamodule=parts.data)
        (watch,) = (c for c in parts.trainer.callbacks if isinstance(c, CollapseWatch))
        assert [epoch.dimensions for epoch in watch.measured] == [16]

    @pytest.mark.parametrize(
        ("name", "value"), [("feature/variance", math.nan), ("erank/target", 0.0)]
    )
    def test_an_epoch_of_zeros_or_nan_is_left_out(self, tmp_path, name, value):
        parts = train.build(configure(*WRONG, "max_epochs=1"), tmp_path)
        parts.trainer.fit(parts.model, datamodule=parts.data)
        (watch,) = (c for c in parts.trainer.callbacks if isinstance(c, CollapseWatch))
        watch.on_train_epoch_end(parts.trainer, parts.model)
        assert len(watch.measured) == 2
        parts.trainer.callback_metrics[name] = torch.tensor(value)
        watch.measured = []
        watch.on_train_epoch_end(parts.trainer, parts.model)
        assert watch.measured == []

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
