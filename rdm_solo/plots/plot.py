"""Describe a figure in one entry: how it is drawn, what it shows, and which runs it needs.

To add a figure, write a function that draws it, decorate it with :class:`Plot` and its texts, and
add its name and module to :mod:`rdm_solo.plots`. Report and notebook then show it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from rdm_solo.ground.errors import UserError, join_first
from rdm_solo.plots import style
from rdm_solo.runs.folder import RunFolder
from rdm_solo.runs.groups import Group, run_name

Groups = Sequence[Group]


@dataclass(frozen=True)
class Plot:
    """A figure; call it with settings to draw it."""

    draw: Callable[[Groups, style.Looks], Figure]  # the settings and each one's look
    title: str  # what it shows
    caption: str  # how to read it
    needs: str  # which runs it needs, for messages
    # What marks the seeds; added below the figure if a setting has several.
    seeds: str = "Line: mean of {n} seeds. Band: minimum to maximum."
    paper: str = ""  # similar figures of the paper
    columns: Sequence[str] = ()  # drawn over epochs; a run needs a value in one of them
    choose: Callable[[Groups], Groups] = list  # settings to draw; [] if it does not apply
    spectra: bool = False  # drawn from spectra

    @property
    def name(self) -> str:
        return self.draw.__name__

    def select(self, all_groups: Groups) -> list[Group]:
        """Return the settings to draw, without those that lack measurements."""
        groups = []
        for group in self.choose(all_groups):
            if any(map(self._can_draw, group.counted)):
                groups.append(group)
        return groups

    def _can_draw(self, run: RunFolder) -> bool:
        if self.columns:
            return any(map(run.has_values, self.columns))
        if self.spectra:
            return run.has_spectra()
        return run.epochs > 0

    @style.styled
    def __call__(self, all_groups: Groups, stacked: bool = False) -> Figure:
        """Draw the figure; ``stacked`` puts the panels below each other, for a narrow screen."""
        groups = self.select(all_groups)
        if not groups:
            raise UserError(f"{self.name} needs {self.needs}.")
        # A setting looks the same in all figures of the same settings.
        looks = style.looks(group.label for group in all_groups)
        if len(looks) == 1:  # a legend with the only setting says nothing
            looks[all_groups[0].label]["label"] = ""
        figure = self.draw(groups, looks)
        if stacked:
            style.stack(figure)
        return style.finish(figure, note=_note(groups, self.seeds))


def _note(groups: Groups, sentence: str) -> str:
    """Return a note with the sentence on seeds, and the runs that are not in the mean."""
    sentences = []
    counts = [len(group.counted) for group in groups]
    fewest, most = min(counts), max(counts)
    if fewest == most > 1:
        sentences.append(sentence.format(n=most))
    elif most > 1:
        sentences.append(sentence.format(n=f"{fewest} to {most}"))
    behind = []
    for group in groups:
        for run in group.uncounted:
            behind.append(f"{run_name(run)} ({run.progress})")
    if behind:
        sentences.append(f"Not in the mean: {join_first(behind)}.")
    return " ".join(sentences)
