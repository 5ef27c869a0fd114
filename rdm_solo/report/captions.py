"""Which figures the report draws, and the words beneath each: what it shows, how to read it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rdm_solo.methods.descriptions import ASYMMETRIES
from rdm_solo.plots.eigenvalues import drawn_in_symmetric, drawn_in_variants
from rdm_solo.plots.exponents import drawn_in_sweep
from rdm_solo.runs.groups import Group


@dataclass(frozen=True)
class Drawing:
    """A figure of :mod:`rdm_solo.plots`, what it shows, the columns whose last values stand beneath
    it, and which settings it draws."""

    name: str
    title: str
    caption: str
    columns: Sequence[str]
    drawn: Callable[[Sequence[Group]], Sequence[Group]] = list


DRAWINGS = (
    Drawing(
        "effective_rank",
        "1. Effective rank of both branches over training (the paper's Figures 1 and 7)",
        "The effective rank counts the directions that the outputs use: the exponential of the "
        "entropy of the correlation matrix's normalised eigenvalues, 1 if all outputs lie on one "
        "line, k if they use all dimensions equally. Where the target lies above the online branch "
        "there is a rank difference, which according to the paper prevents collapse. Ranks usually "
        "fall in the first epochs; Theorem 4 describes, under its conditions, why they rise again. "
        "Lines that fall to 1 are a collapse.",
        ("erank/target", "erank/online"),
    ),
    Drawing(
        "symmetric",
        "2. Symmetric against asymmetric (the paper's Figure 2)",
        "Without a predictor, a filter or a stop-gradient both branches are the same: their "
        "eigenvalues coincide and nothing raises the rank. Centring (SymSimSiam) keeps the "
        "variance high, which the loss of a vanilla network does not. Where eigenvalues drop fast, "
        "the outputs use few directions, whether the variance is high or low.",
        ("feature/variance", "erank/projection"),
        drawn_in_symmetric,
    ),
    Drawing(
        "alignment",
        "3. Alignment of the branches' eigenspaces (the paper's Figure 3)",
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
    ),
    Drawing(
        "spectra",
        "4. Eigenvalues of both branches and the filter curve (the paper's Figures 4 and 8)",
        "Against the index i: the eigenvalues in descending order on a log axis; the branch with "
        "the higher tail uses more directions. Against the target's eigenvalue: the filter between "
        "the branches, g = √(λ_p/λ_z). A curve that rises to the right is low-pass: large "
        "eigenvalues pass, small ones are damped. The line pairs sorted eigenvalues and rises "
        "wherever the target's spectrum is flatter, whatever its directions; the crosses follow "
        "the target's own eigenvectors and are the stricter test.",
        ("filter/monotonicity", "filter/monotonicity_directional"),
    ),
    Drawing(
        "variants",
        "6. Eigenvalues of the variants (the paper's Figure 6)",
        "Eigenvalues of the projector's outputs before any filter, so that online and target "
        "filters can be compared. The slower they fall, the more directions are used.",
        ("erank/projection",),
        drawn_in_variants,
    ),
    Drawing(
        "losses",
        "6b. Training loss (the paper's Figure 9)",
        "A rank difference between the branches keeps the loss above its minimum, which is -1 for "
        "SimSiam, SymSimSiam and Vanilla (minus the cosine), and 0 for BYOL (2 - 2 cos). A loss at "
        "its minimum with a low rank is a collapse. The losses of SwAV and DINO are "
        "cross-entropies, each on its own scale.",
        ("train/loss",),
    ),
    Drawing(
        "sweep",
        "7. Accuracy, effective rank and gap against p",
        "The last values of each run against p. A target filter with p from -1 to 0 raises the "
        "target's rank, one with p > 0 lowers it; an online filter with p > 0 lowers the online "
        "rank; p = 0 is no filter. Settings without an exponent are horizontal lines. A wider gap "
        "is not always better: look at where accuracy peaks.",
        ("val/acc1", "val/knn_acc1", "erank/gap"),
        drawn_in_sweep,
    ),
)

PREDICTION = (
    "Theorem 4 alone, iterated from the first measured spectrum, beside the measured ranks: it "
    "moves each eigenvalue by the filter between the branches and by ω, and uses nothing of data, "
    "network or optimiser."
)

ROLES = (
    (
        ("predictor",),
        "SimSiam, BYOL: the filter of the ideal predictor, ω = λ₊/λ_z, between 0 and 1 (Theorem "
        "2), and g of the run's own predictor or filter; a good predictor is close to the ideal "
        "one. A curve that rises with λ is low-pass; ω ≤ 0 occurs with finitely many pairs.",
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
