"""The rules of collapse: which runs they report, and where their bounds are stated."""

import math
from dataclasses import fields
from pathlib import Path

import pytest

from rdm_solo.collapse.rules import (
    BELOW_UNTRAINED,
    COMPLETE,
    DESTROYED,
    DIMENSIONAL,
    FEW_FEATURES,
    RULES,
    STUCK,
    WRONG_WAY,
    Bounds,
    MeasuredEpoch,
    kinds_of_collapse,
)
from rdm_solo.observe.recorder import Limits
from rdm_solo.train import compose

NAN = math.nan


def kinds_over_time(epochs, **bounds) -> set[str]:
    """Return every kind that is found while the epochs pass."""
    kinds: set[str] = set()
    for n in range(1, len(epochs) + 1):
        kinds.update(kinds_of_collapse(epochs[:n], Bounds(**bounds)))
    return kinds


def healthy_epochs(n: int, **columns) -> list[MeasuredEpoch]:
    """Return n epochs of a healthy run in 32 dimensions; ``columns`` replace their values."""
    epochs = []
    for i in range(n):
        values = {"spread": 0.9, "erank": 9.0, "dimensions": 32, "gap": 0.3}
        for name, column in columns.items():
            values[name] = column[i]
        epochs.append(MeasuredEpoch(i + 1, **values))
    return epochs


# Variance over second moment, and effective rank around the mean, epoch by epoch. The linear
# predictor is made up, the others were measured.
GOOD = (  # SimSiam with a target filter
    [0.999, 0.992, 0.973, 0.962, 0.941, 0.937, 0.929, 0.908],
    [27.0, 11.9, 3.69, 2.91, 3.01, 3.30, 3.28, 3.52],
)
LINEAR_PREDICTOR = [0.335, 0.014, 0.011, 0.010, 0.010], [7.5, 8.1, 9.2, 9.8, 10.0]
WRONG_FILTER = (
    [0.994, 0.986, 0.967, 0.940, 0.917, 0.908, 0.863, 0.861],
    [35.0, 10.2, 3.54, 2.55, 2.07, 1.79, 1.58, 1.47],
)
CRASH = [0.01] * 4, [1.0] * 4


@pytest.mark.parametrize(
    ("columns", "bounds", "kinds"),
    [
        (GOOD, {"warmup": 3}, set()),
        (LINEAR_PREDICTOR, {"warmup": 3}, {COMPLETE}),
        (LINEAR_PREDICTOR, {"warmup": 3, "spread": None}, set()),
        (WRONG_FILTER, {"warmup": 3}, {DIMENSIONAL}),
        (WRONG_FILTER, {"warmup": 3, "erank": 0}, set()),
        # The warm-up and a single epoch are not judged.
        (CRASH, {"warmup": 3}, set()),
        (([0.15, 0.05], [9.0] * 2), {"warmup": 0}, set()),
        # A complete collapse implies a dimensional one.
        (CRASH, {"warmup": 2}, {COMPLETE}),
        # Epochs that were not measured are skipped.
        (([0.01, NAN], [9.0, NAN]), {"warmup": 0}, set()),
        (([0.01, NAN, 0.01], [9.0, NAN, 9.0]), {"warmup": 0}, {COMPLETE}),
        # A rise within noise does not delay a report; the bound is 2.2.
        (([0.9] * 2, [2.153, 2.163]), {"warmup": 0}, {DIMENSIONAL}),
    ],
)
def test_collapse_of_outputs(columns, bounds, kinds):
    spread, erank = columns
    epochs = healthy_epochs(len(spread), spread=spread, erank=erank)
    assert kinds_over_time(epochs, **bounds) == kinds


@pytest.mark.parametrize(
    ("k", "low", "high"), [(4, 1.9, 2.1), (16, 2.1, 2.3), (32, 2.1, 2.3), (2048, 4.9, 5.1)]
)
def test_the_bound_on_the_rank_grows_with_the_dimensions(k, low, high):
    for erank, kinds in ((low, {DIMENSIONAL}), (high, set())):
        epochs = healthy_epochs(2, erank=[erank] * 2, dimensions=[k] * 2)
        assert kinds_over_time(epochs, warmup=0) == kinds


@pytest.mark.parametrize(
    ("shares", "kinds"),
    [
        ([1.0] * 5, {STUCK}),
        ([1.0, 1.0, 1.0, 0.998, 0.99, 0.998, 0.99], set()),  # never twice in a row
        ([0.9, 0.9, 0.9, 0.9, 1.004, 1.004], {STUCK}),
    ],
)
def test_a_loss_that_stays_at_ln_k_is_stuck(shares, kinds):
    epochs = healthy_epochs(len(shares), loss_share=shares)
    assert kinds_over_time(epochs) == kinds
    assert kinds_over_time(epochs, loss=None) == set()


def test_features_in_few_directions():
    epochs = healthy_epochs(5, features=[1.9] * 5)
    assert kinds_over_time(epochs) == {FEW_FEATURES}
    assert kinds_over_time(epochs[:4]) == set()
    assert kinds_over_time(epochs, features=1.8) == set()


@pytest.mark.parametrize(
    ("gaps", "gap_epochs", "kinds"),
    [
        ([-0.01] * 6, 6, {WRONG_WAY}),
        ([-0.01] * 6, 7, set()),
        ([-0.01] * 6, 0, set()),
        ([-0.01] * 6, None, set()),
        ([-1e-6] * 6, 3, set()),  # equal branches, to rounding
        ([-0.1, -0.1, 0.1, -0.1, -0.1], 3, set()),
    ],
)
def test_the_gap_must_be_negative_in_a_row(gaps, gap_epochs, kinds):
    epochs = healthy_epochs(len(gaps), gap=gaps)
    assert kinds_over_time(epochs, gap_epochs=gap_epochs) == kinds


def accuracies(knn=(), online=(), classes: int | None = 10) -> list[MeasuredEpoch]:
    """Return epochs with these accuracies alone; None where one was not measured."""
    epochs = []
    for i in range(max(len(knn), len(online))):
        row = {}
        for name, column in (("val/knn_acc1", knn), ("val/acc1", online)):
            if column and column[i] is not None:
                row[name] = column[i]
        epochs.append(MeasuredEpoch.read(row, i + 1, classes=classes))
    return epochs


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
    epochs = accuracies(knn)
    if untrained is not None:
        epochs.insert(0, MeasuredEpoch.read({"val/knn_acc1": untrained}, 0))
    assert kinds_over_time(epochs, warmup=2) == kinds
    assert kinds_over_time(epochs, warmup=2, untrained=None) == set()
    assert kinds_over_time(epochs, warmup=2, untrained=-2) == set()


# Measured: SimSiam with a target filter, five epochs of eight steps, one of them warm-up.
AT_1E4 = [76.7, 78.6, 29.2, 10.0, 16.9], [7.5, 10.6, 10.0, 10.8, 8.1]
AT_1E6_IN_BF16 = [78.1, 79.4, 62.5, 35.3, 26.1], [7.5, 11.4, 11.1, 10.8, 10.0]
AT_30 = [80.6, 77.8, 81.1, 88.1, 87.5], [10.0, 25.8, 31.7, 48.9, 51.4]


@pytest.mark.parametrize(("knn", "online"), [AT_1E4, AT_1E6_IN_BF16])
@pytest.mark.parametrize("frequency", ["every epoch", "two epochs", "never"])
def test_a_destroyed_encoder_is_found_however_often_knn_is_measured(knn, online, frequency):
    if frequency == "two epochs":
        knn = [knn[0], None, None, None, knn[4]]
    elif frequency == "never":
        knn = ()
    epochs = accuracies(knn, online)
    assert kinds_over_time(epochs, warmup=1) == {DESTROYED}
    assert kinds_of_collapse(epochs, Bounds(warmup=1)) == [DESTROYED]
    assert kinds_over_time(epochs, warmup=1, accuracy=None) == set()


@pytest.mark.parametrize(
    ("epochs", "warmup", "kinds"),
    [
        (accuracies(*AT_30), 1, set()),  # a high rate that trains well
        # Half way from 10 % to 90 % is 50 %; from 50 % to 90 %, 70 %.
        (accuracies([90, 51]), 3, set()),
        (accuracies([90, 49]), 3, {DESTROYED}),
        (accuracies([90, 72], classes=2), 3, set()),
        (accuracies([90, 69], classes=2), 3, {DESTROYED}),
        # Without a number of classes, chance is unknown.
        (accuracies([90, 46], classes=None), 3, set()),
        (accuracies([90, 44], classes=None), 3, {DESTROYED}),
        (accuracies([0] * 6, classes=None), 3, set()),
        # Chance is judged after the warm-up.
        (accuracies(online=[10.0] * 4), 4, set()),
        (accuracies(online=[10.0] * 4), 2, {DESTROYED}),
        (accuracies(online=[12.0, 10.5, 10.5, 14.0]), 3, set()),
        # Two online accuracies in a row are needed.
        (accuracies(online=[80, 20, 80, 20]), 3, set()),
        (accuracies(online=[80, 20, 20]), 3, {DESTROYED}),
        # Data without labels.
        (accuracies([NAN] * 6), 3, set()),
        (accuracies([NAN] * 6, classes=1), 3, set()),
        (accuracies([100] * 6, classes=1), 3, set()),
    ],
)
def test_a_drop_of_the_accuracy(epochs, warmup, kinds):
    assert kinds_over_time(epochs, warmup=warmup) == kinds


def test_only_a_destroyed_encoder_is_a_warning():
    """The other rules give notes, because too many healthy runs meet them."""
    assert [rule.kind for rule in RULES if not rule.note] == [DESTROYED]


def test_the_config_and_the_documentation_state_the_rules():
    """A changed rule needs a change of the config or of the page as well."""
    config = compose([])
    text = Path("docs/read-the-figures.md").read_text()
    for rule in RULES:
        assert config.watch[rule.option] == getattr(Bounds(), rule.option), rule.option
        assert f"| {rule.kind} | {rule.definition} | `watch.{rule.option}` |" in text
    bounds = {field.name for field in fields(Bounds)}
    assert set(config.watch) - {"stop"} <= bounds
    limits = {field.name: field.default for field in fields(Limits)}
    assert limits == {name: config.diagnostics[name] for name in limits}
