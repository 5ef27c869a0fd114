"""The report's figures: what is drawn of which runs, what one sees there, and how to read it."""

from __future__ import annotations

import base64
import io
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rdm_solo.plots.eigenvalues import beside_symmetric, compared, with_spectra
from rdm_solo.plots.exponents import against_p
from rdm_solo.plots.grouping import Group, whole
from rdm_solo.report.html import Picture
from rdm_solo.report.verdicts import spread
from rdm_solo.runs.folder import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from rdm_solo.runs.prediction import Prediction
    from rdm_solo.runs.roles_file import Roles

__all__ = ["draw", "predictions", "roles"]

log = logging.getLogger("rdm_solo")

# Below this a picture is embedded as vectors, sharp at every size; above, as the PNG.
LARGEST_SVG = 700_000
# Settings of which a figure's caption gives the numbers, and which are predicted.
NAMED, PREDICTED = 6, 4


Columns = tuple[tuple[str, str, int], ...]  # of metrics.csv, their names in words, digits


@dataclass(frozen=True)
class Drawing:
    """A figure of :mod:`rdm_solo.plots`, what it shows, the columns whose last values stand beneath
    it, and which settings it draws."""

    name: str
    title: str
    caption: str
    columns: Columns
    drawn: Callable[[Sequence[Group]], Sequence[Group]] = list


DRAWINGS = (
    Drawing(
        "effective_rank",
        "1. Effective rank of both branches over training (the paper's Figures 1 and 7)",
        "The effective rank counts the directions that the outputs use: the exponential of the "
        "entropy of the correlation matrix's normalised eigenvalues, 1 if all outputs lie on one "
        "line, k if they fill all dimensions alike. Where the target lies above the online branch "
        "there is a rank difference, which in the paper's account keeps features from collapsing; "
        "lines that rise again after the first epochs' fall are what Theorem 4 describes, under "
        "its conditions. Lines that fall to 1 are a collapse.",
        (("erank/target", "target", 1), ("erank/online", "online", 1)),
    ),
    Drawing(
        "symmetric",
        "2. Symmetric against asymmetric (the paper's Figure 2)",
        "Without a predictor, a filter or a stop-gradient both branches are alike, so that their "
        "eigenvalues lie on each other and nothing lifts the rank. Centring (SymSimSiam) keeps "
        "the variance up, which a vanilla network's loss does not. Few directions are left where "
        "eigenvalues drop fast, be the variance high or low.",
        (("feature/variance", "variance", 3), ("erank/projection", "rank", 1)),
        beside_symmetric,
    ),
    Drawing(
        "alignment",
        "3. Alignment of the branches' eigenspaces (the paper's Figure 3)",
        "The mean cosine between an eigenvector u of the target's C_z and C_p u: 1 if both "
        "matrices have the same eigenvectors, so that the branches differ in their eigenvalues "
        "alone and a spectral filter is the whole difference. The plain mean counts directions "
        "with hardly any energy as much as the first; the weighted one counts by eigenvalues.",
        (
            ("alignment/online_target", "plain", 2),
            ("alignment/online_target_weighted", "weighted", 2),
            ("alignment/target_positive", "with C₊", 2),
        ),
    ),
    Drawing(
        "spectra",
        "4. Eigenvalues of both branches and the filter curve (the paper's Figures 4 and 8)",
        "Over the index i: the eigenvalues in descending order on a log axis; the branch whose "
        "tail lies higher uses more directions. Over the target's eigenvalue: the filter between "
        "the branches, g = √(λ_p/λ_z). A curve that rises to the right is low-pass: large "
        "eigenvalues pass, small ones are damped. Sorted pairs rise wherever the target's spectrum "
        "is the flatter one, whatever its directions; the crosses follow the target's own "
        "eigenvectors and are the stricter test.",
        (
            ("filter/monotonicity", "monotonicity sorted", 2),
            ("filter/monotonicity_directional", "directional", 2),
        ),
        with_spectra,
    ),
    Drawing(
        "variants",
        "6. Eigenvalues of the variants (the paper's Figure 6)",
        "Eigenvalues of the projector's outputs before any filter, so that online and target "
        "filters compare. The slower they fall, the more directions carry signal.",
        (("erank/projection", "effective rank", 1),),
        compared,
    ),
    Drawing(
        "losses",
        "6b. Training loss (the paper's Figure 9)",
        "A rank difference between the branches holds the loss above its minimum. That is -1 for "
        "SimSiam, SymSimSiam and Vanilla (minus the cosine), and 0 for BYOL (2 - 2 cos); a loss "
        "at its minimum with a low rank is a collapse. SwAV's and DINO's are cross-entropies, on "
        "scales of their own.",
        (("train/loss", "loss", 3),),
    ),
    Drawing(
        "sweep",
        "7. Accuracy, effective rank and gap against p",
        "Last values of each run over the exponent. A target filter with p from -1 to 0 lifts the "
        "target's rank, one with p > 0 lowers it; an online filter with p > 0 lowers the online "
        "rank; p = 0 is no filter. Settings without an exponent are horizontal lines. A wider gap "
        "is not always better: look at where accuracy peaks.",
        (
            ("val/acc1", "online classifier", 1),
            ("val/knn_acc1", "kNN", 1),
            ("erank/gap", "gap", 2),
        ),
        against_p,
    ),
)


def _ends(group: Group, columns: Columns) -> str:
    """Last values of some columns, named."""
    found = [(group.last(column), name, digits) for column, name, digits in columns]
    return ", ".join(f"{name} {spread(v, digits)}" for v, name, digits in found if v)


def draw(groups: Sequence[Group], folder: Path) -> tuple[list[Picture], list[str]]:
    """The figures of these runs, saved to the folder, and a sentence for each that cannot be."""
    from rdm_solo import plots

    runs = [run for group in groups for run in group.runs]
    pictures: list[Picture] = []
    absent: list[str] = []
    for drawing in DRAWINGS:
        reason = _not_for(drawing, runs)
        if not reason:
            made = _try(partial(getattr(plots, drawing.name), runs))
            if not isinstance(made, str):
                numbers = _in_these(drawing.drawn(groups), drawing.columns)
                pictures.append(
                    _picture(made, folder, drawing.name, drawing.title, [drawing.caption], numbers)
                )
                continue
            reason = made
        absent.append(f"Figure {drawing.title}: {reason}")
    return pictures, absent


def _not_for(drawing: Drawing, runs: Sequence[Run]) -> str:
    if drawing.name == "sweep" and len({run.p for run in runs} - {None}) < 2:
        return "the runs have fewer than two exponents p."
    return ""


def _try(make: Callable[[], Any]) -> Any:
    """What is made, or why not: one figure that fails must not cost the page."""
    try:
        return make()
    except ValueError as error:
        return str(error)
    except Exception as error:
        log.debug("a figure failed", exc_info=True)
        return f"it failed with {type(error).__name__}: {error}"


def _in_these(drawn: Sequence[Group], columns: Columns) -> list[str]:
    """The numbers of the first settings that are drawn, at the end of training."""
    found = [(group.label, _ends(group, columns)) for group in drawn]
    told = [f"{label}: {text}" for label, text in found if text]
    more = len(told) - NAMED
    return told[:NAMED] + ([f"and {more} more in the tables below"] if more > 0 else [])


def _picture(
    made: Figure,
    folder: Path,
    name: str,
    title: str,
    caption: Sequence[str],
    numbers: Sequence[str] = (),
) -> Picture:
    from rdm_solo import plots

    # One layout for all three formats: solving it anew takes as long as drawing.
    made.draw_without_rendering()
    made.set_layout_engine("none")
    paths = plots.save(made, folder, name)
    width = float(made.get_size_inches()[0])
    alt = f"{title}. {'; '.join(numbers) or caption[-1]}"
    image, files = _embedded(made, paths[0]), [path.name for path in paths]
    return Picture(name, title, caption, numbers, alt, image, width, files)


def _embedded(made: Figure, png: Path) -> str:
    """The image as a data URI: vectors, or the PNG where these are too many."""
    import matplotlib

    buffer = io.BytesIO()
    with matplotlib.rc_context({"svg.fonttype": "path", "svg.hashsalt": "rdm_solo"}):
        made.savefig(buffer, format="svg", metadata={"Date": None})
    kind, content = "svg+xml", buffer.getvalue()
    if len(content) > LARGEST_SVG:
        kind, content = "png", png.read_bytes()
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


def predictions(groups: Sequence[Group], folder: Path) -> tuple[list[Picture], list[str]]:
    """The path of the rank that Theorem 4 predicts beside the measured one, a run a setting."""
    pictures: list[Picture] = []
    absent: list[str] = []
    for number, group in enumerate(groups[:PREDICTED]):
        run = whole(group)[0]
        made = _try(partial(_predicted, run))
        if isinstance(made, str):
            absent.append(f"Predicted rank of {group.label}: {made}")
            continue
        foretold, figure = made
        title = f"Predicted and measured rank: {group.label}, seed {run.seed}"
        caption = ["Read it as the first one." if pictures else PREDICTION, foretold.direction]
        pictures.append(_picture(figure, folder, f"prediction_{number}", title, caption))
    if len(groups) > PREDICTED:
        rest = "; ".join(group.label for group in groups[PREDICTED:])
        absent.append(
            f"Predicted ranks are drawn of the first {PREDICTED} settings; python -m "
            f"rdm_solo.preview run=FOLDER draws them of the others: {rest}."
        )
    return pictures, absent


def _predicted(run: Run) -> tuple[Prediction, Figure]:
    from rdm_solo.plots.preview import draw_prediction
    from rdm_solo.runs import prediction

    foretold = prediction.predict(run)
    return foretold, draw_prediction(foretold)


PREDICTION = (
    "Theorem 4 alone, iterated from the first measured spectrum, beside what was measured: it "
    "moves each eigenvalue by the filter between the branches and by ω, and knows nothing of data, "
    "network or optimiser. One path keeps the first epoch's filter and ω, one is told every "
    "epoch's, one takes positives for perfect (ω = 1). The step size of all three is fitted to the "
    "whole run's measured rank, for the path that is told, so that a close line is a description "
    "with one free number and no forecast: of the first epoch's path direction and shape are "
    "foretold, and not the pace. What the theorem itself says, without any fit, is the direction."
)


def roles(groups: Sequence[Group], folder: Path) -> tuple[list[Picture], list[str]]:
    """The paper's Figure 5, from checkpoints: a run of each method's own asymmetry, else of any."""
    chosen: dict[str, Run] = {}
    for own in (True, False):
        for group in groups:
            run = whole(group)[0]
            if (run.filter in ("none", "learnable")) == own and run.method in CLAIMED:
                chosen.setdefault(run.method, run)
    title = "5. The role of asymmetric designs (the paper's Figure 5)"
    if not chosen:
        return [], [f"Figure {title}: no run of {', '.join(CLAIMED)}."]
    from rdm_solo.evaluate import roles
    from rdm_solo.plots.roles import draw as draw_roles

    found, absent = [], []
    for run in chosen.values():
        measured = _try(partial(roles.measure, run.folder))
        if isinstance(measured, str):
            absent.append(f"Figure {title}, {run.label}: {measured}")
        else:
            found.append(measured)
    if not found:
        return [], absent
    made = _try(partial(draw_roles, found))
    if isinstance(made, str):
        return [], [*absent, f"Figure {title}: {made}"]
    of = "; ".join(f"{run.label}, seed {run.seed}" for run in found)
    told = [text for methods, text in ROLES if any(run.method in methods for run in found)]
    captions = [f"Recomputed without training from the checkpoints of {of}.", *told]
    return [_picture(made, folder, "roles", title, captions, list(map(_role, found)))], absent


def _role(run: Roles) -> str:
    """A run's curves in words: how steep they are, which are flat, what a log axis leaves out."""
    named = {series.name: series for series in run.series}
    shown = ("g", "omega") if run.branch == "online" else (run.own,)
    words = {"g": "g", "omega": "ω"}
    said = [f"slope {named[n].slope:.2f} ({words.get(n, n)})" for n in shown if n in named]
    own = named[run.own].group if run.own in named else ""
    for group in dict.fromkeys(series.group for series in run.series):
        if run.method == "swav" and group != own:
            said.append(_level(group, [s.value for s in run.series if s.group == group]))
    for name, why in (("g", "g vanishes"), ("omega", "ω is not positive")):
        value = named[name].value if name in named else np.empty(0)
        if gone := int((~(value > 0)).sum()):
            said.append(f"{why} at {gone} of {len(value)} eigenvalues")
    return f"{run.label}: {'; '.join(said)}"


def _level(group: str, curves: Sequence[np.ndarray]) -> str:
    """Between what the curves of a group lie, and whether that is flat."""
    values = np.concatenate(curves)
    low, high = np.nanmin(values), np.nanmax(values)
    between = f"between {low:.2f} and {high:.2f}"
    if low >= 1 / FLAT and high <= FLAT:
        return (
            f"with {group}, the online temperature, the lines are flat ({between}): the iterations "
            "by themselves hardly change the spectrum"
        )
    return f"with {group}, the online temperature, the lines lie {between}"


CLAIMED = ("simsiam", "byol", "swav", "dino")
FLAT = 1.1  # lines that stay within a tenth of 1
ROLES = (
    (
        ("simsiam", "byol"),
        "SimSiam, BYOL: the filter of the ideal predictor, ω = λ₊/λ_z, between 0 and 1 (Theorem "
        "2), which a good predictor comes close to; rising with λ is low-pass. A log axis has no "
        "place for ω ≤ 0, which finitely many pairs can give and which is left out; g is cut where "
        "the online eigenvalues vanish.",
    ),
    (
        ("swav",),
        "SwAV: the target's filter for 0 to 3 Sinkhorn iterations, with the run's ε and with ε at "
        "the online temperature, where nothing but the iterations is left.",
    ),
    (("dino",), "DINO: the target's filter with and without centring, at several temperatures."),
    (
        ("swav", "dino"),
        "A target filter that falls with λ is high-pass, the same asymmetry seen from the other "
        "branch.",
    ),
    (CLAIMED, "The slope is that of a curve's logarithm over log λ."),
)
