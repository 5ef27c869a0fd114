"""The advice after a collapse follows from the run's own config."""

import re

import pytest
from support.small_runs import configure

from rdm_solo.collapse.advice import advice
from rdm_solo.collapse.rules import (
    BELOW_UNTRAINED,
    COMPLETE,
    DESTROYED,
    DIMENSIONAL,
    RULES,
    STUCK,
    WRONG_WAY,
)
from rdm_solo.train import compose
from rdm_solo.train.reporting import advice_settings


@pytest.mark.parametrize(
    ("kind", "options", "cause"),
    [
        (WRONG_WAY, "filter=target_pow p=0.5", "the wrong way.*p < 0"),
        (COMPLETE, "filter=online_pow p=-0.5", "the wrong way.*p > 0"),
        (WRONG_WAY, "filter=online_log", "filter=online_log1p"),
        (COMPLETE, "filter=online_pow p=-2", "between -1 and 0 on the target"),
        (DIMENSIONAL, "method=symsimsiam", "method=symsimsiam has this effect by design"),
        (COMPLETE, "filter=linear", "optimizer.lr=0.5 and scheduler.warmup_epochs=4.8 of 24"),
        (DIMENSIONAL, "filter=online_log1p", "weak under strong augmentation"),
        (DIMENSIONAL, "filter=target_pow p=-0.3", "p=-0.3 is a weak filter"),
        (STUCK, "method=swav", "method.kwargs.sk_iters"),
        (DESTROYED, "filter=identity optimizer.lr=100", "Here optimizer.lr=100"),
        (DESTROYED, "filter=learnable", "dataset.views.pipelines.0"),
        (BELOW_UNTRAINED, "filter=target_pow p=-0.5", "dataset.views.pipelines.0"),
    ],
)
def test_the_cause_is_in_the_runs_own_config(kind, options, cause):
    run = advice_settings(compose(options.split()))
    assert re.search(cause, advice(kind, run))


@pytest.mark.parametrize(
    "options",
    ["filter=learnable", "filter=target_pow p=-0.5", "method=byol filter=online_pow p=1"],
)
def test_no_advice_recommends_what_the_run_does(options):
    cfg = compose(options.split())
    run = advice_settings(cfg)
    for rule in RULES:
        text = advice(rule.kind, run)
        assert "the wrong way" not in text
        assert f"or method={cfg.method.name}" not in text
        assert f"filter={cfg.filter.name} p={cfg.p} is a good start" not in text


def test_a_schedule_of_p_is_judged_at_its_value_in_the_epoch():
    cfg = configure("filter=target_pow", "p={schedule: linear, start: -1, end: 1}")
    run = advice_settings(cfg)
    assert "the wrong way" in advice(WRONG_WAY, run, epoch=1)
    assert "the wrong way" not in advice(WRONG_WAY, run, epoch=0)
