"""The verdicts and first answers by their rules, on made-up tables."""

from dataclasses import replace

import numpy as np
import pytest
from support.report_pages import run, seeds, settings

from rdm_solo.report import answers
from rdm_solo.report.judged import Setting
from rdm_solo.report.verdicts import Outcome, judge_run

LAGGING = {"p": None, "method": "byol", "filter": "identity"}
LEARNED = {"p": None}
FALLEN = {"feature__spread": [0.9, 1e-3, 1e-3]}
DEAD = {"val__knn_acc1": [90, 90, 9]}
AT_LN_K = {"train__loss_share": [1, 1, 1]}


def setting(*members) -> Setting:
    (judged,) = settings(*members)
    return judged


def alive(member) -> Outcome:
    return judge_run(member).alive


@pytest.mark.parametrize(
    ("gaps", "changed", "answer", "good"),
    [
        ([1, 1, 1], LEARNED, "yes, in every epoch", True),
        ([1, 1, 1], {}, "yes, in every epoch (caused by the filter)", True),
        ([1, 1, 1], {"p": -1.5}, "yes, in every epoch", None),
        ([1, 1, 1], LAGGING, "yes, in every epoch", None),
        ([1, 1, 1], LEARNED | FALLEN, "yes, in every epoch", None),
        ([1, 1, -1], LEARNED, "in most epochs", None),
        ([1, -1, -1], LEARNED, "in few epochs", False),
        ([-1, -1, -1], {}, "no, the online branch leads", False),
        ([-1, -1, -1], {"p": None, "method": "mocov2plus"}, "no, the online branch leads", None),
        ([1e-9, 0, -1e-9], {}, "no, the ranks hardly differ", None),
        ([1] * 9 + [-1] * 3, LEARNED, "no longer: the online branch leads at the end", False),
        ([-1] + [1] * 19, LEARNED, "yes, in nearly every epoch", True),
        ([np.nan] * 3, {}, "not measured", None),
    ],
)
def test_whether_the_target_leads(gaps, changed, answer, good):
    verdict = setting(run(epochs=len(gaps), erank__gap=gaps, **changed)).lead
    assert verdict.answer == answer
    assert verdict.good is good


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"p": 0.5}, "wrong way"),
        (LEARNED, "it was learned"),
        (LAGGING, "only from the target network's lag"),
        ({"method": "nnbyol", "p": 0.5}, "the target network's lag and the queue"),
        ({"method": "nnclr", "p": None}, "need not lead here"),
        (FALLEN, "Collapsed networks"),
    ],
)
def test_the_part_of_a_gap_that_the_setting_causes_is_named(changed, words):
    assert words in setting(run(**changed)).lead.caveat


@pytest.mark.parametrize(
    ("by_order", "by_direction", "answer", "good"),
    [
        (1.0, 0.9, "yes, by both tests", True),
        (0.95, 0.1, "by sorted eigenvalues only", None),
        (0.2, 0.6, "by directions only", None),
        (0.2, 0.1, "no clear slope", None),
        (-1.0, -0.9, "no, high-pass: the wrong way", False),
    ],
)
def test_whether_the_filter_is_low_pass(by_order, by_direction, answer, good):
    columns = {
        "filter__monotonicity": [0, 0, by_order],
        "filter__monotonicity_directional": [0, 0, by_direction],
    }
    verdict = setting(run(**columns)).low_pass
    assert verdict.answer == answer
    assert verdict.good is good
    assert setting(run(p=None, method="nnclr", **columns)).low_pass.good is None
    lagging = setting(run(**LAGGING, **columns)).low_pass
    assert (lagging.answer, lagging.good) == ("no filter separates the branches", None)


FEW, COMPLETELY = "outputs collapsed into few directions", "outputs collapsed completely"
DESTROYED = "encoder destroyed"
STUCK = "loss stuck at ln K"
MOSTLY_MEAN = "undecided: 85 % of the outputs' second moment is their mean"
ALIVE = "alive: no rule of collapse met in 3 judged epochs"


@pytest.mark.parametrize(
    ("changed", "answer"),
    [
        (FALLEN, COMPLETELY),
        ({"erank__centred": [5, 1.1, 1.1]}, FEW),
        ({"method": "swav", "p": None, "train__loss_share": [0.9, 0.998, 1.0]}, STUCK),
        ({"val__knn_acc1": [80, np.nan, 30]}, DESTROYED),
        ({"feature__spread": [0.9, 0.21, 0.21]}, ALIVE),
        ({"feature__spread": [0.9, 0.15, 0.15]}, MOSTLY_MEAN),
        ({"erank__centred": [np.nan] * 3}, "no complete collapse; the rank was not measured"),
        ({"feature__spread": [np.nan] * 3}, "not measured"),
    ],
)
def test_whether_a_run_is_alive(changed, answer):
    """Collapsed outputs are no verdict on the features, but no good sign either."""
    outcome = alive(run(**changed))
    assert outcome.answer == answer
    assert outcome.good is {DESTROYED: False, ALIVE: True}.get(answer)
    assert outcome.suspect == (answer in (FEW, COMPLETELY, STUCK))
    assert outcome.collapsed == (answer in (FEW, COMPLETELY))


def test_a_destroyed_encoder_is_judged_from_the_chance_level_of_its_classes():
    """With two classes, 65 % is less than half way from chance to 90 %."""
    one = run(val__knn_acc1=[90, 90, 65])
    assert alive(one).answer == ALIVE
    by_config = run(val__knn_acc1=[90, 90, 65], options={"dataset.num_classes": 2})
    assert alive(by_config).answer == DESTROYED
    by_summary = replace(one, summary={"derived": {"num_classes": 2}})
    assert alive(by_summary).answer == DESTROYED


def test_the_warm_up_is_the_runs_own():
    low = [0.01] * 3
    assert alive(run(feature__spread=low)).collapsed
    longer = run(feature__spread=low, options={"scheduler.warmup_epochs": 2})
    assert not alive(longer).collapsed


def test_every_verdict_on_a_diverged_run_is_that_it_diverged():
    diverged = replace(run(p=None, epochs=2), diverged=3)
    alone = setting(diverged)
    for verdict in (alone.lead, alone.low_pass, alone.health):
        assert (verdict.answer, verdict.good) == ("diverged in epoch 3", False)
    both = setting(run(p=None, seed=1), diverged)
    assert both.lead.good is None
    assert "diverged in epoch 3 (1 of 2)" in both.lead.answer
    assert both.health.answer == "diverged in 1 of 2 seeds"


BOTH = "encoder destroyed in 1 of 3 seeds, outputs collapsed completely in 1 of 3 seeds"


@pytest.mark.parametrize(
    ("members", "answer", "level"),
    [
        ([{}, {}, {}], ALIVE, "good"),
        ([FALLEN, {}, FALLEN], f"{COMPLETELY} in 2 of 3 seeds", "suspect"),
        ([FALLEN, FALLEN], f"{COMPLETELY} in 2 of 2 seeds", "bad"),
        ([AT_LN_K, AT_LN_K], f"{STUCK} in 2 of 2 seeds", "suspect"),
        ([DEAD, {}, FALLEN], BOTH, "bad"),
    ],
)
def test_the_colour_of_a_setting_follows_from_its_seeds(members, answer, level):
    runs = [run(seed=seed, **changed) for seed, changed in enumerate(members)]
    verdict = setting(*runs).health
    assert verdict.answer == answer
    assert verdict.level == level


def test_a_card_names_the_failing_number_of_the_worst_seed():
    health = setting(run(**FALLEN)).health
    assert not any("spread" in number for number in health.numbers), "listed twice"
    # A bad seed comes before one with a note.
    worst = setting(run(**FALLEN), run(seed=1, **DEAD)).health
    assert worst.failing[0].startswith("seed 1: the kNN accuracy is 9.0 %")


def test_a_card_advises_without_a_warning():
    """The last epoch alone is low, the rule has a remedy, or the run recorded why it failed."""
    low = setting(run(erank__centred=[5, 5, 1.1])).health
    assert "2 low epochs" in low.remedy
    dead = setting(run(**DEAD)).health
    assert "learning rate" in dead.remedy
    diverged = replace(run(epochs=2), diverged=3, failure="training diverged. Try a tenth.")
    assert setting(diverged).health.remedy == "training diverged. Try a tenth."


def watched(**changed):
    """Return a run of a watched loop, by default without features."""
    member = run(None, method="mine", filter="none", **changed)
    member.config.watched = {"leads": False}
    return member


def test_a_watched_loop_is_asked_about_its_features_and_its_loss():
    *_, accuracy = answers.first_answers([setting(watched())])
    assert accuracy.question == "How good is it?", "its online accuracy was passed"
    features = {"erank__features_centred": [np.nan, 12, 3], "train__loss": [1, 0.2, 0.5]}
    member = watched(**features, val__acc1=[np.nan] * 3)
    member.spectra["features_dimensions"] = np.full(3, 64)
    alive, change, loss = answers.first_answers([setting(member)])
    assert "features: effective rank around the mean 3.0" in alive.numbers[0]
    assert change.answer == "rank 12.00 → 3.00 of 64"
    assert "epoch 2 to 3" in change.numbers[0]
    assert loss.answer == "yes: 1.000 → 0.500"
    untrained = replace(member, untrained={"erank/features_centred": 20.0})
    assert answers.change(setting(untrained)).answer == "rank 20.00 → 3.00 of 64"
    rising = setting(watched(train__loss=[0.1, 0.2, 0.3]))
    assert answers.loss(rising).answer == "no: 0.100 → 0.300"
    unmeasured = setting(watched(train__loss=[np.nan] * 3))
    assert answers.loss(unmeasured).answer == "not measured"


def test_a_collapse_is_named_before_an_accuracy_below_the_untrained_networks():
    collapsed = run(**FALLEN, val__knn_acc1=[60, 60, 60])
    outcome = alive(replace(collapsed, untrained={"val/knn_acc1": 70.0}))
    assert outcome.answer == COMPLETELY
    assert outcome.level == "bad"


def test_the_title_of_one_run_has_its_seed_and_progress():
    """The golden page has the title of several settings."""
    title = answers.title(settings(run(epochs=2)))
    assert title == "SimSiam, target filter σ^-0.5, seed 0, 2 of 3 epochs"


BEST = "best 95.0 % in epoch 2"
ROW_0 = {"val/knn_acc1": 71.1, "val/knn_pixels": 42.5}
UNTRAINED = replace(run(val__knn_acc1=[50, 95, 90]), untrained=ROW_0)


@pytest.mark.parametrize(
    ("members", "answer", "numbers"),
    [
        ([UNTRAINED], "kNN 90.0 %", [BEST, "71.1 % before training", "raw pixels 42.5 %"]),
        (seeds(-0.5, [90, 92, 94]), "kNN 92.0 ± 2.0 %", []),
        ([run(val__knn_acc1=[50, 95, np.nan])], "kNN 95.0 % in epoch 2", []),
        ([run(val__acc1=[np.nan] * 3)], "not measured", ["no labels, or switched off"]),
    ],
)
def test_an_accuracy_has_its_epoch_and_its_best_one(members, answer, numbers):
    verdict = answers.accuracy(setting(*members))
    assert verdict.answer == answer
    assert [line for line in verdict.numbers if "online" not in line] == numbers


def test_of_several_settings_those_that_are_not_healthy_are_named():
    fallen = seeds(-1.0, [99, 99], **FALLEN)
    healthy = seeds(-0.5, [90, 91])
    unmeasured = seeds(-0.3, [90], feature__spread=[np.nan] * 3)
    several = answers.overview(settings(*healthy, *fallen, *unmeasured))
    assert several.answer == "no rule of collapse met in 2 of 3 settings, 1 of them undecided"
    assert several.level == "suspect"
    assert several.numbers == ["SimSiam, target filter σ^-0.3: not measured"]
    (failing,) = several.failing
    assert failing == "SimSiam, target filter σ^-1: seed 0: spread of the outputs 0.001, below 0.1"
    assert answers.overview(settings(*healthy, *unmeasured)).level == ""
