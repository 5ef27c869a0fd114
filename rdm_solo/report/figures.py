"""The report's figures: drawn, saved beside the page, and put into it."""

import contextlib
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from rdm_solo import plots
from rdm_solo.methods.descriptions import ASYMMETRIES, METHODS
from rdm_solo.plots.preview import draw_prediction
from rdm_solo.plots.roles import draw as draw_roles
from rdm_solo.report.captions import BEST, DRAWINGS, FIRST, MECHANISM, PREDICTION, ROLES
from rdm_solo.report.vectors import Drawn, drawn
from rdm_solo.runs.columns import COLUMNS
from rdm_solo.runs.folder import Run
from rdm_solo.runs.groups import Group, counted_runs, latest_in_words, so_far
from rdm_solo.runs.prediction import predict
from rdm_solo.runs.roles_file import Roles

log = logging.getLogger("rdm_solo")

# Settings of which a figure's caption gives the numbers, and which are predicted.
NAMED, PREDICTED = 6, 4
FLAT = 1.1  # lines that stay within a tenth of 1
FIGURE_5 = "The role of asymmetric designs"


class Picture(NamedTuple):
    """A figure on the page: its title and the paper's figures that it is, what it shows and its
    numbers, the drawing and the note on it, its files' names, and its section."""

    name: str
    title: str
    paper: str
    caption: Sequence[str]
    numbers: Sequence[str]
    drawn: Drawn
    note: str
    files: Sequence[str]
    section: str


@dataclass
class Gallery:
    """Figures saved to a folder, and a sentence for each that could not be drawn."""

    folder: Path
    pictures: list[Picture] = field(default_factory=list)
    absent: list[str] = field(default_factory=list)

    @contextlib.contextmanager
    def attempt(self, what: str) -> Iterator[None]:
        """Note why the block failed, if it does: one figure that fails must not cost the page."""
        try:
            yield
        except ValueError as error:
            self.absent.append(f"{what}: {error}")
        except Exception as error:
            log.debug("a figure failed", exc_info=True)
            self.absent.append(f"{what}: it failed with {type(error).__name__}: {error}")

    def add(
        self,
        made: Figure,
        name: str,
        title: str,
        caption: Sequence[str],
        numbers: Sequence[str] = (),
        section: str = MECHANISM,
        paper: str = "",
    ) -> None:
        """Save a figure in its formats, and keep it for the page."""
        files = [path.name for path in plots.save(made, self.folder, name)]
        note = str(made.get_label())
        self.pictures.append(
            Picture(name, title, paper, caption, numbers, drawn(made, name), note, files, section)
        )


def draw(
    groups: Sequence[Group], folder: Path, checkpoints: bool = True
) -> tuple[list[Picture], list[str]]:
    """The figures of these runs, saved to the folder, and a sentence for each that cannot be.

    ``checkpoints=False`` leaves out the paper's Figure 5, which is recomputed from them.
    """
    gallery = Gallery(folder)
    runs = [run for group in groups for run in group.runs]
    for drawing in DRAWINGS:
        if not drawing.fits(groups):
            continue
        with gallery.attempt(drawing.title):
            made = getattr(plots, drawing.name)(runs)
            numbers = _in_numbers(drawing.drawn(groups), drawing.columns)
            caption = [drawing.caption] if drawing.caption else []
            about = (drawing.title, caption, numbers, drawing.section, drawing.paper)
            gallery.add(made, drawing.name, *about)
    if checkpoints:
        _roles(gallery, groups)
    _predictions(gallery, groups)
    return _first(gallery.pictures), gallery.absent


def _first(pictures: list[Picture]) -> list[Picture]:
    """The pictures, with one on the first screen: that of every setting where none is against p."""
    if any(picture.section == FIRST for picture in pictures):
        return pictures
    return [p._replace(section=FIRST) if p.section == BEST else p for p in pictures]


def _in_numbers(drawn: Sequence[Group], columns: Sequence[str]) -> list[str]:
    """The last values of the first settings that are drawn."""
    found = []
    for group in drawn:
        shown = [COLUMNS[column] for column in columns if group.last(column)]
        counted = counted_runs(group)
        words = ", ".join(f"{c.words} {latest_in_words(counted, c.name, c.digits)}" for c in shown)
        if words:
            found.append(f"{group.label}: {words}")
    more = len(found) - NAMED
    return found[:NAMED] + ([f"and {more} more in the tables below"] if more > 0 else [])


def _predictions(gallery: Gallery, groups: Sequence[Group]) -> None:
    """The ranks that Theorem 4 predicts beside the measured ones, of one run of each setting."""
    caption = PREDICTION
    for number, group in enumerate(groups[:PREDICTED]):
        run = counted_runs(group)[0]
        title = f"Predicted and measured rank: {group.label}, seed {run.seed}"
        with gallery.attempt(title):
            found = predict(run)
            made = draw_prediction(found)
            gallery.add(made, f"prediction_{number}", title, [caption])
            caption = "As the first prediction, for another setting."
    if len(groups) > PREDICTED:
        rest = "; ".join(group.label for group in groups[PREDICTED:])
        gallery.absent.append(
            f"Predicted ranks are drawn for the first {PREDICTED} settings only; for the others, "
            f"python -m rdm_solo.preview run=FOLDER draws them: {rest}."
        )


def _roles(gallery: Gallery, groups: Sequence[Group]) -> None:
    """The paper's Figure 5, from checkpoints."""
    chosen = runs_with_roles(groups)
    if not chosen:
        names = [name for name, known in METHODS.items() if known.asymmetry in ASYMMETRIES]
        gallery.absent.append(f"{FIGURE_5}: no run of {', '.join(names)}.")
        return
    found = []
    for run in chosen:
        with gallery.attempt(f"{FIGURE_5}, {run.label}"):
            # Rebuilds a trained model: alone of the report, it needs solo-learn and its packages.
            from rdm_solo.evaluate.roles import measure

            found.append(measure(run.folder))
    if found:
        diverged = {run.folder: f" ({so_far(run)})" for run in chosen if run.diverged}
        of = "; ".join(
            f"{roles.label}, seed {roles.seed}{diverged.get(roles.folder, '')}" for roles in found
        )
        asymmetries = {METHODS[roles.method].asymmetry for roles in found}
        notes = [text for kinds, text in ROLES if asymmetries.intersection(kinds)]
        captions = [f"Recomputed without training from the checkpoints of {of}.", *notes]
        with gallery.attempt(FIGURE_5):
            numbers = [curves_in_words(roles) for roles in found]
            gallery.add(draw_roles(found), "roles", FIGURE_5, captions, numbers, paper="Figure 5")


def runs_with_roles(groups: Sequence[Group]) -> list[Run]:
    """The runs of the paper's Figure 5: one of each method's own asymmetry, else of any."""
    chosen: dict[str, Run] = {}
    for own in (True, False):
        for group in groups:
            run = counted_runs(group)[0]
            if run.chosen_filter.own == own and run.described.asymmetry in ASYMMETRIES:
                chosen.setdefault(run.method, run)
    return list(chosen.values())


def curves_in_words(run: Roles) -> str:
    """How steep a run's curves are, which of them are flat, and what a log axis leaves out."""
    named = {series.name: series for series in run.series}
    shown = {"g": "g", "omega": "ω"} if run.branch == "online" else {run.own: run.own}
    said = [f"slope {named[n].slope:.2f} ({shown[n]})" for n in shown if n in named]
    own = named[run.own].group if run.own in named else ""
    for group in dict.fromkeys(series.group for series in run.series):
        if METHODS[run.method].asymmetry == "sinkhorn" and group != own:
            said.append(_level(group, [s.value for s in run.series if s.group == group]))
    for name, why in (("g", "g is zero"), ("omega", "ω is not positive")):
        value = named[name].value if name in named else np.empty(0)
        if gone := int((~(value > 0)).sum()):
            said.append(f"{why} at {gone} of {len(value)} eigenvalues")
    return f"{run.label}: {'; '.join(said)}"


def _level(group: str, curves: Sequence[np.ndarray]) -> str:
    """Between what the curves of a group lie, and whether that is flat."""
    low, high = np.nanmin(np.concatenate(curves)), np.nanmax(np.concatenate(curves))
    text = f"with {group}, the online temperature, the lines lie between {low:.2f} and {high:.2f}"
    if low >= 1 / FLAT and high <= FLAT:
        text += ", which is flat: the iterations alone hardly change the spectrum"
    return text
