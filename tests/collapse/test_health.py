"""The judgement of a single run, from the first epochs on."""

import math

import pytest

from rdm_solo.collapse.health import health
from rdm_solo.collapse.rules import Bounds, MeasuredEpoch

NAN = math.nan
HEALTHY = {"spread": 0.9, "erank": 9.0, "dimensions": 32, "gap": 0.3, "chance": 10.0}
BOUNDS = Bounds(warmup=2)


def after(columns, first=1):
    """Return the outcome after epochs that are healthy but for these columns."""
    epochs = []
    for number, values in enumerate(zip(*columns.values()), first):
        row = dict(zip(columns, values))
        epochs.append(MeasuredEpoch(number, **HEALTHY | row))
    return health(epochs, BOUNDS)


@pytest.mark.parametrize(
    ("columns", "kind", "number"),
    [
        ({"erank": [9.0, 9.0, 9.0, 9.0, 1.95]}, "dimensional collapse", "1.95 of 32, below 2.2"),
        ({"erank": [9.0, 1.9]}, "dimensional collapse", "1.9 of 32"),  # in the warm-up
        ({"erank": [9.0, 9.0, 9.0, 1.95, NAN]}, "dimensional collapse", "1.95 of 32"),
        ({"spread": [0.9, 0.9, 0.9, 0.9, 0.05]}, "complete collapse", "0.05, below 0.1"),
        ({"features": [9, 9, 9, 9, 1.5]}, "collapsed features", "1.5, below 2"),
        ({"loss_share": [0.9, 0.9, 0.9, 0.9, 0.999]}, "stuck loss", "0.9990 times ln K"),
    ],
)
def test_a_run_whose_last_value_is_below_a_bound_is_not_alive_yet(columns, kind, number):
    outcome = after(columns)
    assert outcome.good is None
    assert outcome.level == "suspect"
    assert kind in outcome.answer
    assert number in outcome.number


def test_an_accuracy_that_fell_below_the_untrained_networks_names_all_three():
    """Measured: three epochs at a learning rate of 10,000, all in the warm-up."""
    outcome = after({"knn": [71.4, 83.1, 55.0]}, first=0)
    assert outcome.good is None
    for accuracy in ("55.0", "71.4", "83.1"):
        assert accuracy in outcome.number


@pytest.mark.parametrize(
    ("erank", "judged"),
    [
        ([9.0] * 7, "in 5 judged epochs"),
        ([9.0, 1.0, 9.0, 9.0, 9.0], "in 3 judged epochs"),  # the warm-up is not judged
        # A collapse that ended is named: the rule was met until epoch 4.
        ([9.0, 9.0, 1.0, 1.0, 9.0, 9.0], "in the last 2 judged epochs (dimensional"),
        ([9.0, 9.0, 9.0, NAN, 9.0], "in 3 judged epochs"),
    ],
)
def test_alive_says_how_many_epochs_were_judged(erank, judged):
    outcome = after({"erank": erank})
    assert outcome.good is True
    assert judged in outcome.answer


def test_the_number_of_a_collapse_stands_beside_its_bound():
    outcome = after({"erank": [9.0, 9.0, 1.5, 1.25]})
    assert outcome.collapsed
    assert "1.25 of 32, below 2.2" in outcome.number
    assert after({"knn": [90.0, 90.0, 20.0]}).number == (
        "the kNN accuracy is 20.0 % (its best was 90.0 %, chance is 10 %)"
    )
