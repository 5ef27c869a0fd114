"""The rules of collapse: which runs they report, and where their bounds are stated."""

import math
from dataclasses import fields, replace
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
HEALTHY = {"spread": 0.9, "erank": 9.0, "dimensions": 32, "gap": 0.3, "chance": 10.0}


def kinds_over_time(columns, first=1, **bounds):
    """Return every kind that is found while epochs pass that are healthy but for these columns."""
    epochs = []
    kinds = set()
    for number, values in enumerate(zip(*columns.values()), first):
        row = dict(zip(columns, values))
        epochs.append(MeasuredEpoch(number, **HEALTHY | row))
        kinds.update(kinds_of_collapse(epochs, Bounds(**bounds)))
    return kinds


@pytest.mark.parametrize(
    ("erank", "kinds"),
    [
        ([27.0, 11.9, 3.69, 2.91, 3.01, 3.30], set()),  # measured: a target filter
        ([35.0, 10.2, 3.54, 2.55, 2.07, 1.79], {DIMENSIONAL}),  # measured: a wrong filter
        # A rise within noise does not delay a report; the bound is 2.2.
        ([9.0, 9.0, 9.0, 2.153, 2.163], {DIMENSIONAL}),
    ],
)
def test_a_low_rank_of_the_outputs_is_reported_after_the_warm_up(erank, kinds):
    columns = {"erank": erank}
    assert kinds_over_time(columns) == kinds
    assert kinds_over_time(columns, erank=0) == set()


@pytest.mark.parametrize(("k", "bound"), [(4, 2.0), (16, 2.2), (32, 2.2), (2048, 5.0)])
def test_the_bound_on_the_rank_grows_with_the_dimensions(k, bound):
    columns = {"dimensions": [k] * 5, "erank": [bound - 0.1] * 5}
    assert kinds_over_time(columns) == {DIMENSIONAL}
    columns["erank"] = [bound + 0.1] * 5
    assert kinds_over_time(columns) == set()


@pytest.mark.parametrize(
    ("column", "low", "high", "kind", "option"),
    [
        ("spread", 0.09, 0.11, COMPLETE, "spread"),
        ("features", 1.9, 2.1, FEW_FEATURES, "features"),
        ("loss_share", 1.004, 1.006, STUCK, "loss"),
        ("loss_share", 0.996, 0.994, STUCK, "loss"),
    ],
)
def test_two_low_values_in_a_row_are_reported_after_the_warm_up(column, low, high, kind, option):
    after_warm_up = {column: [high, high, high, low, low]}
    assert kinds_over_time(after_warm_up) == {kind}
    assert kinds_over_time(after_warm_up, **{option: None}) == set()
    for values in (
        [low, low, low, low],
        [high, high, high, low, high, low],
        [high, high, high, low, NAN],
    ):
        assert kinds_over_time({column: values}) == set()
    with_gap = {column: [low, NAN, low]}  # an epoch that was not measured is skipped
    assert kinds_over_time(with_gap, warmup=0) == {kind}


def test_a_complete_collapse_implies_two_others():
    columns = {"spread": [0.01] * 5, "erank": [1.0] * 5, "loss_share": [1.0] * 5}
    assert kinds_over_time(columns) == {COMPLETE}


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
def test_a_gap_that_is_negative_in_a_row_is_reported(gaps, gap_epochs, kinds):
    columns = {"gap": gaps}
    assert kinds_over_time(columns, gap_epochs=gap_epochs) == kinds


@pytest.mark.parametrize(
    ("knn", "kinds"),
    [
        ([40, 39, 39, 39, 39], {BELOW_UNTRAINED}),
        ([40, 39, 39, 39, 40], set()),
        ([40, 41, 39, 41, 39], set()),  # two in a row
        ([40, 39, 39, 41, 39], set()),  # the first two are in the warm-up
        ([40, 41, 41, 39, NAN, 39], {BELOW_UNTRAINED}),
        ([NAN, 39, 39, 39, 39], set()),
    ],
)
def test_an_accuracy_below_that_of_the_untrained_network(knn, kinds):
    columns = {"knn": knn}
    assert kinds_over_time(columns, first=0, warmup=2) == kinds
    for bound in (None, -2):
        assert kinds_over_time(columns, first=0, warmup=2, untrained=bound) == set()


# Measured: SimSiam with a target filter, five epochs of eight steps, one of them warm-up.
AT_1E4 = [76.7, 78.6, 29.2, 10.0, 16.9], [7.5, 10.6, 10.0, 10.8, 8.1]
NEVER = [NAN] * 5
AT_30 = [80.6, 77.8, 81.1, 88.1, 87.5], [10.0, 25.8, 31.7, 48.9, 51.4]


@pytest.mark.parametrize(
    ("knn", "online", "kinds"),
    [
        (*AT_1E4, {DESTROYED}),
        (*AT_30, set()),  # a high rate that trains well
        # kNN in the first and last epoch only, never, from the second epoch on, and without labels.
        ([76.7, NAN, NAN, NAN, 16.9], AT_1E4[1], {DESTROYED}),
        (NEVER, [80, *AT_1E4[1][1:]], {DESTROYED}),
        ([NAN, 80, 20], NEVER, {DESTROYED}),
        (NEVER, NEVER, set()),
        # The warm-up, here one epoch, is not judged. One kNN accuracy after it is enough.
        ([80, 20, 80, 80], NEVER, {DESTROYED}),
        ([20, 80, 80, 80], NEVER, set()),
        # At chance, 10 %, in two epochs, after an accuracy above it.
        (NEVER, [16.0, 12.0, 10.0], set()),
        (NEVER, [16.0, 10.9, 10.9], {DESTROYED}),
        (NEVER, [16.0, 10.9, 11.1], set()),
        # Two online accuracies in a row are needed for a drop.
        (NEVER, [80, 20, 80, 20], set()),
        (NEVER, [80, 80, 20, 20], {DESTROYED}),
    ],
)
def test_a_destroyed_encoder_is_found_however_often_knn_is_measured(knn, online, kinds):
    columns = {"knn": knn, "online": online}
    assert kinds_over_time(columns, warmup=1) == kinds
    assert kinds_over_time(columns, warmup=1, accuracy=None) == set()


@pytest.mark.parametrize(("last", "kinds"), [(90.2, {DESTROYED}), (97.0, set())])
def test_chance_is_the_share_of_the_most_frequent_class(last, kinds):
    """Nine images of ten are of one of two classes, so 90 % is what any encoder reaches."""
    row = {"val/knn_acc1": 98.0, "val/chance": 90.0}
    rows = [row, row, row, row, row | {"val/knn_acc1": last}]
    epochs = [MeasuredEpoch.read(row, number, classes=2) for number, row in enumerate(rows)]
    assert set(kinds_of_collapse(epochs, Bounds())) == kinds


def test_an_epoch_without_knn_has_the_chance_level_of_the_others():
    rows = [{"val/knn_acc1": 98.0, "val/chance": 90.0}, *[{"val/acc1": 90.0}] * 5]
    epochs = [MeasuredEpoch.read(row, number, classes=2) for number, row in enumerate(rows)]
    epochs[1:4] = [replace(epoch, online=98.0) for epoch in epochs[1:4]]
    assert kinds_of_collapse(epochs, Bounds()) == [DESTROYED]


@pytest.mark.parametrize(
    ("best", "last", "chance", "kinds"),
    [
        # Half way from 10 % to 90 % is 50 %; from 50 % to 90 %, 70 %.
        (90, 51, 10, set()),
        (90, 49, 10, {DESTROYED}),
        (90, 72, 50, set()),
        (90, 69, 50, {DESTROYED}),
        # Without a number of classes, chance is unknown.
        (90, 46, 0, set()),
        (90, 44, 0, {DESTROYED}),
        (0, 0, 0, set()),
        # The best accuracy must be a tenth of the way from chance to 100 %.
        (18.9, 11.1, 10, set()),
        (19.1, 11.1, 10, {DESTROYED}),
    ],
)
def test_a_drop_of_the_accuracy_is_measured_from_chance(best, last, chance, kinds):
    columns = {"knn": [best, last], "chance": [chance] * 2}
    assert kinds_over_time(columns, warmup=1) == kinds


@pytest.mark.parametrize(
    ("online", "target", "expected"),
    [(1, 2, math.log(2)), (4, 2, -math.log(2)), (0, 2, NAN), (2, 0, NAN)],
)
def test_the_gap_is_the_logarithm_of_a_ratio_of_ranks(online, target, expected):
    """A branch whose outputs are all zero has rank 0, and the ratio is undefined."""
    row = {"erank/online": online, "erank/gap": target - online}
    epoch = MeasuredEpoch.read(row, 1)
    assert epoch.gap == pytest.approx(expected, nan_ok=True)


@pytest.mark.parametrize(("classes", "chance"), [(None, 0), (1, 0), (2, 50)])
def test_chance_needs_two_classes(classes, chance):
    assert MeasuredEpoch.read({}, 1, classes=classes).chance == chance


def test_only_a_destroyed_encoder_is_a_warning():
    """The other rules give notes, because too many healthy runs meet them."""
    assert [rule.kind for rule in RULES if not rule.note] == [DESTROYED]


def test_the_config_and_the_documentation_state_the_rules():
    """A changed rule needs a change of the config or of the page as well."""
    config = compose([])
    text = Path("docs/read-the-figures.md").read_text()
    for rule in RULES:
        assert config.watch[rule.option] == getattr(Bounds, rule.option)
        assert f"| {rule.kind} | {rule.definition} | `watch.{rule.option}` |" in text
    assert set(config.watch) - {"stop"} <= vars(Bounds).keys()
    for field in fields(Limits):
        assert config.diagnostics[field.name] == field.default
