"""Which figures the report draws, in which section, and the words beneath each: what it shows, how
to read it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rdm_solo.methods.descriptions import ASYMMETRIES
from rdm_solo.plots.eigenvalues import drawn_in_symmetric, drawn_in_variants
from rdm_solo.plots.exponents import drawn_in_sweep
from rdm_solo.runs.groups import Group

# Sections that have figures. FIRST is the first screen.
FIRST, ALIVE, GOOD, BEST = "first", "alive", "good", "best"
SPECTRA, MECHANISM, RANKS = "branches", "mechanism", "ranks"


def several_exponents(groups: Sequence[Group]) -> bool:
    """Whether there is anything to draw against p."""
    return len({run.p for group in groups for run in group.runs} - {None}) > 1


def several_settings(groups: Sequence[Group]) -> bool:
    """Whether there is anything to compare."""
    return len(groups) > 1


@dataclass(frozen=True)
class Drawing:
    """A figure of :mod:`rdm_solo.plots`, what it shows, the columns whose last values stand beneath
    it, the section that it stands in, the paper's figures that it is, which settings it draws, and
    how many of them it takes."""

    name: str
    title: str
    caption: str
    columns: Sequence[str]
    section: str
    paper: str = ""
    drawn: Callable[[Sequence[Group]], Sequence[Group]] = list
    fits: Callable[[Sequence[Group]], bool] = bool


DRAWINGS = (
    Drawing(
        "overview",
        "Effective rank, and accuracy or loss, over training",
        "",
        (),
        FIRST,
        fits=lambda groups: len(groups) == 1,
    ),
    Drawing(
        "effective_rank",
        "Effective rank of both branches over training",
        "The effective rank counts the directions that the outputs use: the exponential of the "
        "entropy of the correlation matrix's normalised eigenvalues, 1 if all outputs lie on one "
        "line, k if they use all dimensions equally. Where the target lies above the online branch "
        "there is a rank difference, which according to the paper prevents collapse. Ranks usually "
        "fall in the first epochs; Theorem 4 describes, under its conditions, why they rise again. "
        "Both ranks are uncentred, so a large mean lowers them, too; collapse is judged around the "
        "mean.",
        ("erank/target", "erank/online"),
        ALIVE,
        "Figures 1 and 7",
    ),
    Drawing(
        "symmetric",
        "Symmetric against asymmetric",
        "Where nothing makes the branches' outputs differ (no predictor, filter or other network), "
        "their eigenvalues coincide, and only the loss (negatives, decorrelation) can keep the "
        "rank up. Where eigenvalues drop fast, the outputs use few directions, whether the "
        "variance is high or low.",
        ("feature/variance", "erank/projection"),
        SPECTRA,
        "Figure 2",
        drawn_in_symmetric,
    ),
    Drawing(
        "alignment",
        "Alignment of the branches' eigenspaces",
        "The mean cosine between an eigenvector u of the target's C_z and C_p u: 1 if both "
        "matrices have the same eigenvectors; then the branches differ only by a spectral filter. "
        "The plain mean gives directions with hardly any energy the same weight as the first; the "
        "weighted one goes by their eigenvalues. The paper's formula takes the eigenvectors of "
        "99.99 % of the eigenvalues' sum, its code a fixed number of them. With C₊: the plain mean "
        "for C_z and C₊, which pairs the target's outputs of two views.",
        (
            "alignment/online_target",
            "alignment/online_target_weighted",
            "alignment/target_positive",
        ),
        MECHANISM,
        "Figure 3",
    ),
    Drawing(
        "spectra",
        "Eigenvalues of both branches and the filter curve",
        "Against the index i: the eigenvalues in descending order on a log axis; the branch with "
        "the higher tail uses more directions. Against the target's eigenvalue: the filter between "
        "the branches, g = √(λ_p/λ_z). A curve that rises to the right is low-pass: large "
        "eigenvalues pass, small ones are damped. The line pairs sorted eigenvalues and rises "
        "wherever the target's spectrum is flatter, whatever its directions; the crosses follow "
        "the target's own eigenvectors and are the stricter test.",
        ("filter/monotonicity", "filter/monotonicity_directional"),
        SPECTRA,
        "Figures 4 and 8",
    ),
    Drawing(
        "variants",
        "Eigenvalues of the variants",
        "Eigenvalues of the projector's outputs before any filter, so that online and target "
        "filters can be compared. The slower they fall, the more directions are used.",
        ("erank/projection",),
        SPECTRA,
        "Figure 6",
        drawn_in_variants,
        several_settings,
    ),
    Drawing(
        "losses",
        "Training loss",
        "A rank difference between the branches keeps the loss above its minimum, which is -1 for "
        "SimSiam, NNSiam, SymSimSiam and Vanilla (minus the cosine), and 0 for BYOL, NNBYOL and "
        "W-MSE (2 - 2 cos). The loss alone does not tell a collapse: read it beside the rank. All "
        "other losses have scales of their own.",
        ("train/loss",),
        ALIVE,
        "Figure 9",
    ),
    Drawing(
        "sweep",
        "Accuracy, effective rank and gap against p",
        "The last values of each run; those without an exponent are horizontal lines. p = 0 is no "
        "filter. A wider gap is not always better: look at where accuracy peaks.",
        (),
        FIRST,
        drawn=drawn_in_sweep,
        fits=several_exponents,
    ),
    Drawing(
        "comparison",
        "Accuracy, effective rank and gap of every setting",
        "The last values, the most accurate setting on top. A large point is the mean over seeds, "
        "a small one is a seed. Points that overlap from line to line do not tell settings apart.",
        (),
        BEST,
        fits=several_settings,
    ),
    Drawing(
        "accuracies",
        "Accuracy over training",
        "kNN classifies by the nearest training images in the backbone's features; the online "
        "classifier is trained beside the features, and lags behind them.",
        (),
        GOOD,
    ),
    Drawing(
        "measures",
        "Other measures of rank over training",
        "The table beneath explains each. All are computed from the target's outputs, the "
        "statistic of Epps and Pulley from the projection.",
        (),
        RANKS,
    ),
)

# What each measure says, by its column.
SAYS = {
    "rankme/target": "Effective rank of the singular values; a higher one was proposed as a "
    "sign of a better checkpoint of one method.",
    "lidar/target": "Rank of the differences between samples, relative to those between views of "
    "one sample.",
    "stable_rank/target": "Sum of the eigenvalues over the largest one: small directions hardly "
    "count.",
    "participation_ratio/target": "How many eigenvalues share the sum: 1 to the number of "
    "dimensions.",
    "nesum/target": "Sum of the covariance's eigenvalues over the largest one: the stable rank "
    "around the mean.",
    "alpha_req/target": "Exponent of the power law that the covariance's eigenvalues follow; "
    "meaningful only where its R² is near 1.",
    "alpha_req_r2/target": "How well a power law fits the covariance's eigenvalues: 1 is exact.",
    "uniformity/target": "How evenly outputs cover the sphere: 0 is one point, lower is more even. "
    "Of at most 4,096 outputs, drawn at random.",
    "positive_distance/target": "Mean squared distance of two views of one image: 0 where views "
    "agree.",
    "epps_pulley/projection": "SIGReg's test against a normal distribution: about 1 where the "
    "projections are normally distributed with variance 1.",
    "mean_share/target": "Share of the mean in the second moment: 1 where all outputs are their "
    "mean.",
}

PREDICTION = (
    "Theorem 4, iterated from the first measured spectrum, beside the measured ranks: it moves "
    "each eigenvalue by the measured filter between the branches and by ω. Only the step size is "
    "fitted."
)

ROLES = (
    (
        ("predictor",),
        "Methods with a predictor: the filter of the ideal one, ω = λ₊/λ_z, between 0 and 1 "
        "(Theorem 2), and g of the run's own predictor or filter; a good predictor is close to the "
        "ideal one. A curve that rises with λ is low-pass; ω ≤ 0 occurs with finitely many pairs.",
    ),
    (
        ("sinkhorn",),
        "SwAV: the target's filter for 0 to 3 Sinkhorn iterations, with the run's ε and with ε at "
        "the online temperature, which shows the effect of the iterations alone.",
    ),
    (("centring",), "DINO: the target's filter with and without centring, by temperature."),
    (
        ("sinkhorn", "centring"),
        "A target filter that falls with λ is high-pass, which is the same asymmetry as a low-pass "
        "online filter.",
    ),
    (ASYMMETRIES, "The slope is that of the logarithm of a curve against log λ."),
)
