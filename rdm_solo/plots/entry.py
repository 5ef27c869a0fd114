"""A figure in one entry: how it is drawn, what it shows, and which runs it needs.

To add one, write a function that draws, put :class:`Plot` with the words above it, and add its
name and module to :mod:`rdm_solo.plots`. Report and notebook follow.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from rdm_solo.messages import UserError
from rdm_solo.plots import style
from rdm_solo.plots.curves import note
from rdm_solo.runs.folder import Run
from rdm_solo.runs.groups import Group, counted_runs, groups

Groups = Sequence[Group]


def has_epochs(run: Run) -> bool:
    """Return whether a run finished an epoch."""
    return run.epochs > 0


def has_spectra(run: Run) -> bool:
    """Return whether a run measured the spectra of an epoch."""
    return "lam_target" in run.spectra and len(run.spectra["epoch"]) > 0


def has_any(*columns: str) -> Callable[[Run], bool]:
    """Return a test for runs with a finite value in one of these columns."""
    return lambda run: any(np.isfinite(run.metrics.get(name, np.nan)).any() for name in columns)


@dataclass(frozen=True)
class Plot:
    """A figure of runs; call it with runs to draw it.

    Args:
        draw: from the settings to draw and each setting's look, by its label, to a figure.
        section: the report's section with this figure.
        title: what it shows.
        caption: how to read it.
        needs: the runs that it needs, in words.
        paper: the paper's figures of this kind.
        choose: the settings to draw; none: the figure does not apply.
        measured: whether a run has what the figure draws.
    """

    draw: Callable[[Groups, style.Looks], Figure]
    section: str
    title: str
    caption: str
    needs: str
    paper: str = ""
    choose: Callable[[Groups], Groups] = list
    measured: Callable[[Run], bool] = has_epochs

    @property
    def name(self) -> str:
        return self.draw.__name__

    def drawn(self, everything: Groups) -> list[Group]:
        """Return the settings to draw, those with measurements."""
        chosen = self.choose(everything)
        return [group for group in chosen if any(map(self.measured, counted_runs(group)))]

    @style.styled
    def __call__(self, runs: Sequence[Run]) -> Figure:
        everything = groups(runs)
        drawn = self.drawn(everything)
        if not drawn:
            raise UserError(f"{self.name} needs {self.needs}.")
        # A setting looks the same in all figures of the same runs.
        looks = style.looks(group.label for group in everything)
        chosen = [run for group in self.choose(everything) for run in group.runs]
        lacking = [run for run in chosen if not self.measured(run)]
        return style.finish(self.draw(drawn, looks), note=note(drawn, lacking))
