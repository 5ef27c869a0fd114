"""The verdicts and first answers by their rules, on made-up tables."""

from dataclasses import replace

import numpy as np
import pytest
from omegaconf import OmegaConf
from support.report_pages import run, seeds

from rdm_solo.report import answers, verdicts
from rdm_solo.runs.groups import by_setting

LAGGING = {"p": None, "method": "byol", "filter": "identity"}


@pytest.mark.parametrize(
    ("gaps", "changed", "answer", "good"),
    [
        ([1, 1, 1], {"p": None}, "yes, in every epoch", True),
        ([1, 1, 1], {}, "yes, in every epoch (caused by the filter)", True),
        ([1, 1, 1], {"p": -1.5}, "yes, in every epoch", None),
        ([1, 1, 1], LAGGING, "yes, in every epoch", None),
        ([1, 1, 1], {"p": None, "feature__spread": [0.9, 0, 0]}, "yes, in every epoch", None),
        ([1, 1, 1], {"p": None, "val__knn_acc1": [90, 90, 9]}, "yes, in every epoch", None),
        ([1, 1, -1], {"p": None}, "in most epochs", None),
        ([1, -1, -1], {"p": None}, "in few epochs", False),
        ([-1, -1, -1], {}, "no, the online branch leads", False),
        ([1e-9, 0, -1e-9], {}, "no, the ranks hardly differ", None),
        ([0] * 18 + [-1] * 2, {"p": None}, "no, the ranks hardly differ", None),
        ([1] * 9 + [-1] * 3, {"p": None}, "no longer: the online branch leads at the end", False),
        ([-1] + [1] * 19, {"p": None}, "yes, in nearly every epoch", True),
        ([np.nan] * 3, {}, "not measured", None),
        ([-1] * 3, {"p": None, "method": "mocov2plus"}, "no, the online branch leads", None),
    ],
)
def test_whether_the_target_leads(gaps, changed, answer, good):
    verdict = verdicts.lead([run(**{"epochs": len(gaps), "erank__gap": gaps, **changed})])
    assert (verdict.answer, verdict.good) == (answer, good)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"p": 0.5}, "wrong way"),
        ({"p": None}, "Nothing in the setting forces a gap: it was learned."),
        ({"p": None, "method": "dino"}, "Fixed temperatures"),
        (LAGGING, "only from the target network's lag"),
        ({"p": -1.5}, "may raise or lower the rank"),
        ({"method": "byol"}, "raises the target's rank in each batch"),
        ({"method": "nnsiam", "p": None, "filter": "identity"}, "only from the queue"),
        ({"method": "nnbyol", "p": 0.5}, "also depends on the target network's lag and the queue"),
        ({"method": "nnclr", "p": None}, "The target need not lead here"),
        ({"feature__spread": [0.9, 1e-3, 1e-3]}, "Collapsed networks can have a gap as well"),
    ],
)
def test_the_part_of_a_gap_that_the_setting_causes_is_named(changed, says):
    assert says in verdicts.lead([run(**changed)]).caveat


@pytest.mark.parametrize(
    ("by_rank", "by_direction", "answer", "good"),
    [
        (1.0, 0.9, "yes, by both tests", True),
        (0.95, 0.1, "by sorted eigenvalues only", None),
        (0.2, 0.6, "by directions only", None),
        (0.2, 0.1, "no clear slope", None),
        (-1.0, -0.9, "no, high-pass: the wrong way", False),
    ],
)
def test_whether_the_filter_is_low_pass(by_rank, by_direction, answer, good):
    columns = {
        "filter__monotonicity": [0, 0, by_rank],
        "filter__monotonicity_directional": [0, 0, by_direction],
    }
    verdict = verdicts.low_pass([run(**columns)])
    assert (verdict.answer, verdict.good) == (answer, good)
    assert verdicts.low_pass([run(p=None, method="nnclr", **columns)]).good is None
    lagging = verdicts.low_pass([run(**LAGGING, **columns)])
    assert (lagging.answer, lagging.good) == ("no filter separates the branches", None)


FEW, COMPLETELY = "outputs collapsed into few directions", "outputs collapsed completely"
DESTROYED = "encoder destroyed"
STUCK = "loss stuck at ln K"
MOSTLY_MEAN = "undecided: 85 % of the outputs' second moment is their mean"


@pytest.mark.parametrize(
    ("changed", "how"),
    [
        ({"feature__spread": [0.9, 0.01, 0.01]}, COMPLETELY),
        ({"feature__spread": [0.9, 0.12, 0.12], "erank__centred": [5, 1.02, 1.02]}, FEW),
        ({"erank__centred": [5, 1.1, 1.1]}, FEW),
        ({"erank__centred": [5, 1.1, 1.1], "method": "dino", "p": None}, FEW),
        ({"method": "swav", "p": None, "train__loss_share": [0.9, 0.998, 1.0]}, STUCK),
        ({"val__knn_acc1": [80, np.nan, 30]}, DESTROYED),
        ({"val__acc1": [80, 30, 30]}, DESTROYED),
        ({"val__acc1": [80, 30, 30], "feature__spread": [np.nan] * 3}, DESTROYED),
    ],
)
def test_a_collapsed_run_is_not_alive(changed, how):
    """Collapsed outputs are no verdict on the features, but no good sign either."""
    outcome = verdicts.outcome(run(**changed))
    destroyed = how == DESTROYED
    assert outcome[:3] == (how, False if destroyed else None, not destroyed)
    assert outcome.collapsed == (how in {FEW, COMPLETELY})
    assert not outcome.healthy


@pytest.mark.parametrize(
    ("changed", "answer"),
    [
        ({}, "alive"),
        ({"feature__spread": [0.9, 0.21, 0.21]}, "alive"),
        ({"feature__spread": [0.01, 0.9, 0.9]}, "alive"),
        ({"val__knn_acc1": [80, 30, 90]}, "alive"),
        ({"feature__spread": [0.9, 0.15, 0.15]}, MOSTLY_MEAN),
        ({"erank__centred": [np.nan] * 3}, "no complete collapse; the rank was not measured"),
        ({"epochs": 1}, "too early to say"),
        ({"feature__spread": [np.nan] * 3}, "not measured"),
    ],
)
def test_a_run_that_has_not_collapsed(changed, answer):
    verdict = verdicts.health([run(**changed)])
    assert (verdict.answer, verdict.good) == (answer, True if answer == "alive" else None)


def test_a_destroyed_encoder_is_judged_from_the_chance_level_of_its_classes():
    """With two classes, 65 % is less than half way from chance to 90 %."""
    one = run(val__knn_acc1=[90, 90, 65])
    assert verdicts.outcome(one).answer == "alive"
    config = OmegaConf.merge(one.config, {"dataset": {"num_classes": 2}})
    for changed in ({"config": config}, {"summary": {"derived": {"num_classes": 2}}}):
        assert verdicts.outcome(replace(one, **changed)).answer == DESTROYED


def test_the_warm_up_is_the_runs_own():
    low = run(feature__spread=[0.01] * 3)
    longer = OmegaConf.merge(low.config, {"scheduler": {"warmup_epochs": 2}})
    assert verdicts.outcome(low).suspect
    assert verdicts.outcome(replace(low, config=longer)).answer == "too early to say"


def test_seeds_that_disagree_are_counted():
    three = [run(p=None, seed=s, erank__gap=[sign] * 3) for s, sign in enumerate((1, 1, -1))]
    verdict = verdicts.lead(three)
    assert verdict.good is None
    assert verdict.answer == "yes, in every epoch (2 of 3); no, the online branch leads (1 of 3)"


def test_every_verdict_on_a_diverged_run_is_that_it_diverged():
    diverged = replace(run(p=None, epochs=2), diverged=3)
    assert [(v.answer, v.good) for v in verdicts.verdicts([diverged])] == [
        ("diverged in epoch 3", False)
    ] * 3
    verdict = verdicts.lead([run(p=None, seed=1), diverged])
    assert verdict.good is None
    assert "diverged in epoch 3 (1 of 2)" in verdict.answer


FALLEN, DEAD = {"feature__spread": [0.9, 1e-3, 1e-3]}, {"val__knn_acc1": [90, 90, 9]}
AT_LN_K, RATE = {"train__loss_share": [1, 1, 1]}, {"optimizer.lr": 1}
METHODS = [run(None, method="swav", filter="none"), run(None, method="byol")]
BOTH = "encoder destroyed in 1 of 3 seeds, outputs collapsed completely in 1 of 3 seeds"


@pytest.mark.parametrize(
    ("members", "answer", "level"),
    [
        ([{}, {}, {}], "alive", "good"),
        ([FALLEN], COMPLETELY, "bad"),
        ([FALLEN, {}, FALLEN], f"{COMPLETELY} in 2 of 3 seeds", "suspect"),
        ([FALLEN, FALLEN], f"{COMPLETELY} in 2 of 2 seeds", "bad"),
        ([AT_LN_K, AT_LN_K], f"{STUCK} in 2 of 2 seeds", "suspect"),
        ([DEAD, {}, FALLEN], BOTH, "bad"),
    ],
)
def test_the_colour_of_a_setting_follows_from_its_seeds(members, answer, level):
    verdict = verdicts.health([run(seed=i, **changed) for i, changed in enumerate(members)])
    assert (verdict.answer, verdict.level) == (answer, level)


def test_a_collapse_is_named_before_an_accuracy_below_the_untrained_networks():
    collapsed = run(**FALLEN, val__knn_acc1=[60, 60, 60])
    for knn, answer in ((50.0, COMPLETELY), (70.0, COMPLETELY)):
        verdict = verdicts.health([replace(collapsed, untrained={"val/knn_acc1": knn})])
        assert (verdict.answer, verdict.level) == (answer, "bad")


@pytest.mark.parametrize(
    ("members", "title"),
    [
        ([run(seed=5)], "target filter σ^-0.5, seed 5, 3 epochs"),
        ([run(epochs=2)], "target filter σ^-0.5, seed 0, 2 of 3 epochs"),
        ([run(-1), run(-0.7), run(-0.3)], "target filter σ^p, p = -1 … -0.3, 3 runs, 3 epochs"),
        ([run(), run(options=RATE)], "target filter σ^-0.5, 2 settings, 2 runs, 3 epochs"),
        (METHODS, "SwAV; BYOL, learnable predictor, 2 runs, 3 epochs"),
        ([run(), run(None)], "target filter σ^-0.5; learnable predictor, 2 runs, 3 epochs"),
    ],
)
def test_the_title_says_what_was_compared(members, title):
    assert answers.title(by_setting(members)).removeprefix("SimSiam, ") == title


def test_an_unfinished_run_says_how_far_it_came():
    (group,) = by_setting([run(epochs=2)])
    assert answers.progress(group) == ["2 of 3 epochs, still training or interrupted"]
    stopped = replace(run(epochs=2), summary={"stopped": "SIGTERM"})
    assert answers.progress(by_setting([stopped])[0]) == ["2 of 3 epochs, stopped"]


def test_an_accuracy_has_its_epoch_its_best_one_and_the_seeds():
    answer = answers.accuracy(by_setting([run(val__knn_acc1=[50, 95, 90])])[0])
    assert answer.answer == "kNN 90.0 %"
    assert answer.numbers[0] == "best 95.0 % in epoch 2"
    several = answers.accuracy(by_setting(seeds(-0.5, [90, 92, 94]))[0])
    assert several.answer == "kNN 92.0 ± 2.0 %"
    assert several.numbers[0] == "3 seeds from 90.0 to 94.0 %"
    earlier = answers.accuracy(by_setting([run(val__knn_acc1=[50, 95, np.nan])])[0])
    assert earlier.answer == "kNN 95.0 % in epoch 2"
    assert answers.accuracy(by_setting([run(val__acc1=[np.nan] * 3)])[0]).answer == "not measured"


def test_of_several_settings_those_that_collapsed_or_diverged_are_named():
    fallen = seeds(-1.0, [99, 99], feature__spread=[0.9, 1e-3, 1e-3])
    gone = [replace(one, diverged=4) for one in seeds(-0.7, [98, 98])]
    partly = [*seeds(-0.3, [99]), *seeds(-0.3, [0, 99], feature__spread=[0.9, 1e-3, 1e-3])[1:]]
    answer = answers.overview(by_setting([*seeds(-0.5, [90, 91]), *fallen, *gone, *partly]))
    assert answer.answer == "1 of 4 settings healthy"
    assert answer.good is None
    assert answer.numbers == [
        "not ranked: SimSiam, target filter σ^-1; SimSiam, target filter σ^-0.7",
        "not healthy in some seeds: SimSiam, target filter σ^-0.3",
    ]
    unmeasured = answers.overview(by_setting([run(), run(-1, feature__spread=[np.nan] * 3)]))
    assert (unmeasured.answer, unmeasured.good) == ("1 of 2 settings healthy", None)
    assert unmeasured.numbers == ["not judged: SimSiam, target filter σ^-1"]
    assert answers.overview(by_setting(fallen)).good is False
    assert answers.overview(by_setting(seeds(-0.5, [90]))).good is True
