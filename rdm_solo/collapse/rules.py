"""The collapse rules, shared by warnings, the report, docs and studies."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

COMPLETE, DIMENSIONAL, STUCK = "complete collapse", "dimensional collapse", "stuck loss"
DESTROYED, WRONG_WAY = "destroyed encoder", "negative gap"
BELOW_UNTRAINED, FEW_FEATURES = "below the untrained network", "collapsed features"

# Number of low values in a row that a rule needs: ranks and accuracies often drop and recover.
IN_A_ROW = 2
# Equal branches differ in log rank by less than this, because of rounding.
MIN_GAP = 1e-3
# Batch norm alone can keep an effective rank of about 2, so a rank below this is a collapse.
MIN_DIRECTIONS = 2.2
# An accuracy of at most this many times the chance level counts as chance, if an earlier one was
# above it by so much that this was no accident. In the study of the warnings, each ABOVE_CHANCE
# from 1.1 to 1.6 finds the same runs; with 1.1, shuffled labels raise a warning.
AT_CHANCE = 1.1
ABOVE_CHANCE = 1.5
# A drop counts only if the best accuracy was at least chance + this share of (100 % - chance).
MIN_GAIN = 0.1


@dataclass(frozen=True)
class MeasuredEpoch:
    """The values of one epoch that the rules read; NaN where a value was not measured.

    ``spread`` and ``erank`` describe the projections before any filter. They are centred on each
    step's mean, because a large mean hides the other directions. ``spread`` is the variance's share
    of the second moment (0: all images have the same output), ``erank`` the effective rank. With a
    softmax, ``spread`` describes the logits, and ``erank`` describes the last layer's input.
    """

    epoch: int  # counted from 1; 0 is the untrained network
    spread: float
    erank: float
    dimensions: int
    gap: float  # log of the target's effective rank over the online branch's
    loss_share: float = math.nan  # loss of a method with a softmax of K outputs, over ln K
    knn: float = math.nan  # kNN accuracy in per cent
    online: float = math.nan  # accuracy of the online classifier in per cent
    # Share of the most frequent class in per cent, or 100 / number of classes; 0 if unknown.
    chance: float = 0.0
    features: float = math.nan  # effective rank of the backbone's features around their mean

    @classmethod
    def read(
        cls,
        row: Mapping[str, Any],
        epoch: int,
        dimensions: int = 0,
        classes: int | None = None,
    ) -> "MeasuredEpoch":
        """Read one epoch from scalars under the column names of ``metrics.csv``.

        >>> row = {"feature/spread": 0.5, "erank/online": 4, "erank/gap": 0, "val/acc1": 90}
        >>> epoch = MeasuredEpoch.read(row, 3, dimensions=8, classes=10)
        >>> epoch.spread, epoch.erank, epoch.gap, epoch.online, epoch.chance
        (0.5, nan, 0.0, 90.0, 10.0)
        """

        def value(name: str) -> float:
            return float(row.get(name, math.nan))

        chance = value("val/chance")
        if math.isnan(chance):
            chance = 100 / classes if classes and classes > 1 else 0.0
        online, gap = value("erank/online"), value("erank/gap")
        log_gap = math.nan
        if online > 0 and online + gap > 0:
            log_gap = math.log1p(gap / online)
        return cls(
            epoch,
            spread=value("feature/spread"),
            erank=value("erank/centred"),
            dimensions=dimensions,
            gap=log_gap,
            loss_share=value("train/loss_share"),
            knn=value("val/knn_acc1"),
            online=value("val/acc1"),
            chance=chance,
            features=value("erank/features_centred"),
        )


@dataclass(frozen=True)
class Bounds:
    """When to report a collapse; ``None`` switches a rule off.

    In the first ``warmup`` epochs values often drop and recover, so only negative gaps are judged.
    ``loss`` is judged if the number of softmax outputs is known.
    """

    spread: float | None = 0.1
    erank: float | None = 0.21
    gap_epochs: int | None = 3
    warmup: float = 3
    accuracy: float | None = 0.5
    loss: float | None = 0.005
    untrained: float | None = 0.0
    features: float | None = 2.0

    def min_rank(self, k: int) -> float:
        """Return the bound on the effective rank of ``k`` dimensions.

        It is ``min(k / 2, max(MIN_DIRECTIONS, k ** erank))``.

        >>> [round(Bounds().min_rank(k), 1) for k in (4, 32, 256, 2048)]
        [2.0, 2.2, 3.2, 5.0]
        """
        rank = float(k ** (self.erank or 0))
        return min(k / 2, max(MIN_DIRECTIONS, rank))


Epochs = Sequence[MeasuredEpoch]  # all epochs of a run so far


@dataclass(frozen=True)
class Rule:
    """A kind of collapse, found if a value is below its bound in the last measured epochs."""

    kind: str
    option: str  # the bound's name in :class:`Bounds` and in the config's ``watch``
    answer: str  # the report's answer to "Is it alive?"
    definition: str  # with the default bounds
    number: str  # the value beside its bound, a template as `warning`
    warning: str  # a template for `sentence`
    value: Callable[[Epochs, Bounds], float]  # computed for the last epoch
    # Returns None if the rule is off; if there is no function, the bound is the option's value.
    bound: Callable[[MeasuredEpoch, Bounds], float | None] | None = None
    remedy: str = ""  # what to try first; empty if it depends on the config or the loop
    in_a_row: Callable[[MeasuredEpoch, Bounds], int] = lambda epoch, bounds: IN_A_ROW
    in_warm_up: bool = False  # whether epochs of the warm-up are judged
    limits: tuple[float, ...] = (0, 1)  # allowed range of the bound
    note: bool = True  # logged as a note: many healthy runs meet the rule

    def sentence(self, epochs: Epochs, bounds: Bounds, option: Callable[[str, Any], str]) -> str:
        """Return the warning. ``option(name, value)`` formats an option as a user sets it."""
        setting = option(self.option, getattr(bounds, self.option))
        off = f"{option(self.option, None)} switches this rule off"
        text = self._format(self.warning, epochs, bounds, setting=setting, off=off)
        return f"{self.kind} in epoch {epochs[-1].epoch}: {text}"

    def number_in(self, epochs: Epochs, bounds: Bounds) -> str:
        """Return the last measured value beside its bound."""
        return self._format(self.number, self._measured(epochs, bounds), bounds)

    def _format(self, template: str, epochs: Epochs, bounds: Bounds, **words: str) -> str:
        return template.format(
            now=epochs[-1],
            value=f"{self.value(epochs, bounds):.4g}",
            bounds=bounds,
            bound=self.bound_in(epochs[-1], bounds),
            accuracy=accuracy_in_words(epochs),
            gained=gained_knn(epochs, bounds),
            untrained=epochs[0].knn,
            best=_latest_accuracy(epochs)[2],
            behind=-math.expm1(epochs[-1].gap),  # share of the online branch's rank
            **words,
        )

    def bound_in(self, epoch: MeasuredEpoch, bounds: Bounds) -> float | None:
        """Return the bound on an epoch's value, or None if the rule is off."""
        if self.bound is None:
            bound: float | None = getattr(bounds, self.option)
            return bound
        return self.bound(epoch, bounds)

    def holds(self, epochs: Epochs, bounds: Bounds) -> bool:
        """Return whether the last measured values are below the bound."""
        if not epochs:
            return False
        needed = self.in_a_row(epochs[-1], bounds)
        first_epoch = 1 if self.in_warm_up else bounds.warmup + 1
        low_values = 0
        for end in range(len(epochs), 0, -1):
            if low_values == needed or epochs[end - 1].epoch < first_epoch:
                break
            value = self.value(epochs[:end], bounds)
            bound = self.bound_in(epochs[end - 1], bounds)
            if bound is None or value >= bound:
                return False
            if not math.isnan(value):  # epochs without a value are skipped
                low_values += 1
        return 0 < needed == low_values

    def last_is_low(self, epochs: Epochs, bounds: Bounds) -> bool:
        """Return whether the last measured value is below the bound, also in the warm-up."""
        measured = self._measured(epochs, bounds)
        if not measured or not self.in_a_row(measured[-1], bounds):
            return False
        bound = self.bound_in(measured[-1], bounds)
        return bound is not None and self.value(measured, bounds) < bound

    def _measured(self, epochs: Epochs, bounds: Bounds) -> Epochs:
        """Return the epochs up to the last trained one that measured the value."""
        for end in range(len(epochs), 0, -1):
            if epochs[end - 1].epoch and not math.isnan(self.value(epochs[:end], bounds)):
                return epochs[:end]
        return []


def _latest_accuracy(epochs: Epochs) -> tuple[str, float, float]:
    """Return the name of the last epoch's accuracy, its value and its best value so far."""
    if math.isnan(epochs[-1].knn):
        name = "online"
        values = [epoch.online for epoch in epochs]
    else:
        name = "kNN"
        values = [epoch.knn for epoch in epochs]
    best = max(filter(math.isfinite, values), default=math.nan)
    return name, values[-1], best


def chance_level(epochs: Epochs) -> float:
    """Return the accuracy in per cent of a constant guess; 0 if it is unknown.

    Epochs without kNN know the number of classes at most, which gives a lower value than the
    labels if these are not balanced.
    """
    return max(epoch.chance for epoch in epochs)


def accuracy_kept(epochs: Epochs, bounds: Bounds) -> float:
    """Return the ratio of the last accuracy to the best one, both minus the chance level.

    There are two exceptions. It is 0 if the accuracy fell to chance, and otherwise 1 if no accuracy
    was clearly above chance.

    >>> epochs = [MeasuredEpoch(e, 1, 9, 32, 0, knn=x, chance=10) for e, x in ((4, 90), (5, 30))]
    >>> accuracy_kept(epochs, Bounds())
    0.25
    """
    chance = chance_level(epochs)
    _, accuracy, best = _latest_accuracy(epochs)
    if math.isnan(accuracy):
        return math.nan
    if accuracy <= AT_CHANCE * chance and best > ABOVE_CHANCE * chance:
        return 0.0
    gain = best - chance
    if gain <= MIN_GAIN * (100 - chance):
        return 1.0  # too close to chance for a drop
    return (accuracy - chance) / gain


def accuracy_in_words(epochs: Epochs) -> str:
    """Describe the last epoch's accuracy, the best accuracy and the chance level in words."""
    name, accuracy, best = _latest_accuracy(epochs)
    chance = ""
    if chance_level(epochs):
        chance = f", chance is {chance_level(epochs):.3g} %"
    return f"the {name} accuracy is {accuracy:.1f} % (its best was {best:.1f} %{chance})"


def gained_knn(epochs: Epochs, bounds: Bounds) -> float:
    """Return the kNN accuracy minus the untrained network's, in percentage points.

    >>> epochs = [MeasuredEpoch(e, 1, 9, 32, 0, knn=x) for e, x in ((0, 30), (5, 24))]
    >>> gained_knn(epochs, Bounds())
    -6
    """
    if epochs[0].epoch != 0:  # the untrained network was not measured
        return math.nan
    return epochs[-1].knn - epochs[0].knn


LOST_ACCURACY = (
    "The learning rate may be too high: try a tenth of it. Or the augmentation may not suit the "
    "images: if views share a shortcut, such as their brightness, only the shortcut is learned, "
    "and if crops are too small, views share nothing else."
)
RULES = (
    Rule(
        DESTROYED,
        option="accuracy",
        answer="encoder destroyed",
        definition="after the warm-up the kNN accuracy minus chance (the share of the most "
        f"frequent class) is below {100 * (Bounds.accuracy or 0):g} % of its best value, or the "
        "kNN accuracy has fallen to chance. In epochs without kNN the accuracy of the online "
        "classifier is judged instead, and it must be low in two epochs in a row",
        number="{accuracy}",
        warning="{accuracy}; {off}.",
        value=accuracy_kept,
        bound=lambda epoch, bounds: bounds.accuracy or None,
        remedy=LOST_ACCURACY,
        note=False,
        in_a_row=lambda epoch, bounds: IN_A_ROW if math.isnan(epoch.knn) else 1,
    ),
    Rule(
        BELOW_UNTRAINED,
        option="untrained",
        answer="kNN below the untrained network's",
        definition="after the warm-up the kNN accuracy is below that of the untrained network",
        number="kNN accuracy {now.knn:.1f} % (untrained {untrained:.1f} %, best {best:.1f} %)",
        warning="the kNN accuracy is {now.knn:.1f} %, {gained:+.1f} points compared with the "
        "untrained network ({off}).",
        value=gained_knn,
        limits=(),
        remedy=LOST_ACCURACY,
    ),
    Rule(
        FEW_FEATURES,
        option="features",
        answer="features collapsed",
        definition="after the warm-up the effective rank of the backbone's features around their "
        f"mean (erank/features_centred) is below {Bounds.features:g}",
        number="effective rank of the features around their mean {value}, below {bound:g}",
        warning="the effective rank of the backbone's features around their mean is {value}, below "
        "{setting}.",
        value=lambda epochs, bounds: epochs[-1].features,
        limits=(0,),
    ),
    Rule(
        COMPLETE,
        option="spread",
        answer="outputs collapsed completely",
        definition="after the warm-up the outputs' variance over their second moment "
        f"(feature/spread) is below {Bounds.spread:g}",
        number="spread of the outputs {value}, below {bound:g}",
        warning="all images have nearly the same output (feature/spread is {value}, "
        "below {setting}).",
        value=lambda epochs, bounds: epochs[-1].spread,
    ),
    Rule(
        DIMENSIONAL,
        option="erank",
        answer="outputs collapsed into few directions",
        definition="after the warm-up the outputs' effective rank around their mean "
        f"(erank/centred) is below max({MIN_DIRECTIONS:g}, k^{Bounds.erank:g}), "
        "or below k/2 if that is smaller",
        number="effective rank around the mean {value} of {now.dimensions}, below {bound:.4g}",
        warning="the effective rank of the outputs around their mean is {value} in "
        "{now.dimensions} dimensions, which is below {bound:.4g} ({off}).",
        value=lambda epochs, bounds: epochs[-1].erank,
        bound=lambda epoch, bounds: bounds.min_rank(epoch.dimensions) if bounds.erank else None,
    ),
    Rule(
        STUCK,
        option="loss",
        answer="loss stuck at ln K",
        definition="after the warm-up the loss of a method with a softmax over K outputs is within "
        f"{100 * (Bounds.loss or 0):g} % of ln K, which is the loss of a uniform softmax "
        "(train/loss_share is near 1)",
        number="loss {now.loss_share:.4f} times ln K",
        warning="the loss is {now.loss_share:.4f} times ln K, which is the loss of a uniform "
        "softmax over K outputs ({off}).",
        value=lambda epochs, bounds: abs(epochs[-1].loss_share - 1),
    ),
    Rule(
        WRONG_WAY,
        option="gap_epochs",
        answer="online branch leads",
        definition=f"the target's effective rank is more than {100 * MIN_GAP:g} % below the online "
        "branch's",
        number="effective rank of the target {behind:.1%} below the online branch's",
        warning="the target's effective rank has been below the online branch's for "
        "{bounds.gap_epochs} measured epochs, now by {behind:.1%}; it should be above.",
        value=lambda epochs, bounds: epochs[-1].gap,
        bound=lambda epoch, bounds: -MIN_GAP,
        limits=(0,),
        remedy="A predictor that raises the online rank, or a target network that lags too far "
        "behind, is the likeliest cause. Try a lower learning rate and a longer warm-up first.",
        in_a_row=lambda epoch, bounds: bounds.gap_epochs or 0,
        in_warm_up=True,
    ),
)
RULE = {rule.kind: rule for rule in RULES}


def kinds_of_collapse(epochs: Epochs, bounds: Bounds) -> list[str]:
    """Return the kinds of collapse after these epochs.

    >>> flat = [MeasuredEpoch(epoch, 0.001, 9.0, 32, 0.0) for epoch in (8, 9)]
    >>> kinds_of_collapse(flat, Bounds())
    ['complete collapse']
    """
    kinds = [rule.kind for rule in RULES if rule.holds(epochs, bounds)]
    if COMPLETE in kinds:  # it implies two others
        kinds = [kind for kind in kinds if kind not in (DIMENSIONAL, STUCK)]
    return kinds
