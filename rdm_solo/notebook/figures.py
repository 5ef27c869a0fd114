"""The figures of a run or a sweep, under the names of their entries."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from matplotlib.figure import Figure

from rdm_solo import plots
from rdm_solo.report.figures import PLOTS
from rdm_solo.runs.folder import Run
from rdm_solo.runs.groups import begun_groups


class Figures:
    """A method for each figure of ``python -m rdm_solo.report``, with its caption as docstring.

    Each returns a matplotlib figure, which a notebook shows if it is a cell's last value. It is
    neither saved nor registered with ``pyplot``; ``figure.savefig("spectra.pdf")`` saves it. If
    these runs have nothing to draw, a ValueError says what the figure needs. ``figure5`` rebuilds
    models from checkpoints, which takes seconds to minutes and needs what training needs.
    """

    def __init__(self, runs: Sequence[Run]) -> None:
        self._runs = [run for group in begun_groups(runs) for run in group.runs]

    if TYPE_CHECKING:  # the methods that are added below

        def __getattr__(self, name: str) -> Callable[[], Figure]: ...

    def __repr__(self) -> str:
        names = [name for name in dir(self) if not name.startswith("_")]
        return f"<figures: {', '.join(names)}>"


def _method(plot: plots.Plot) -> Callable[[Figures], Figure]:
    def figure(self: Figures) -> Figure:
        return plot(self._runs)

    figure.__name__ = plot.name
    figure.__qualname__ = f"{Figures.__name__}.{plot.name}"
    figure.__doc__ = f"{plot.title}.\n\n{plot.caption}"
    return figure


for _plot in PLOTS:
    setattr(Figures, _plot.name, _method(_plot))


class RunFigures(Figures):
    __doc__ = Figures.__doc__

    def __init__(self, run: Run) -> None:
        super().__init__([run])
        self._run = run

    def epoch(self, epoch: int | None = None) -> Figure:
        """Eigenvalues of both branches and the filter curve in one measured epoch (the last)."""
        arrays = self._run.spectrum(epoch)
        return plots.epoch_picture(arrays, f"{self._run.label}, epoch {arrays['epoch']}")


class SweepFigures(Figures):
    __doc__ = Figures.__doc__
