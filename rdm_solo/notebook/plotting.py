"""The figures of a run or a sweep, as methods."""

from collections.abc import Callable, Sequence

from matplotlib.figure import Figure

from rdm_solo import plots
from rdm_solo.report.figures import PLOTS
from rdm_solo.runs.folder import RunFolder
from rdm_solo.runs.groups import started_groups

_PLOTS = {plot.name: plot for plot in PLOTS}


class Figures:
    """A method for each figure of ``rdm-solo report``, with its caption as docstring.

    Each returns a matplotlib figure, which a notebook shows if it is a cell's last value. It is
    neither saved nor registered with ``pyplot``; ``figure.savefig("spectra.pdf")`` saves it. If
    these runs lack the data, a ValueError names what the figure needs. ``figure5`` rebuilds models
    from checkpoints, which takes seconds per setting and needs the packages for training.
    """

    def __init__(self, runs: Sequence[RunFolder]) -> None:
        self._runs = runs

    def __getattr__(self, name: str) -> Callable[[], Figure]:
        if name not in _PLOTS:
            raise AttributeError(f"there is no figure {name!r}: {self}")
        plot = _PLOTS[name]

        def figure() -> Figure:
            return plot(started_groups(self._runs))

        figure.__name__ = name
        figure.__doc__ = f"{plot.title}.\n\n{plot.caption}"
        return figure

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *_PLOTS]

    def __repr__(self) -> str:
        return f"<figures: {', '.join(_PLOTS)}>"


class RunFigures(Figures):
    __doc__ = Figures.__doc__

    def epoch(self, epoch: int | None = None) -> Figure:
        """Draw both branches' eigenvalues and the filter curve of an epoch, by default the last."""
        (run,) = self._runs
        arrays = run.spectrum(epoch)
        return plots.epoch_picture(arrays, f"{run.label}, epoch {arrays['epoch']}")
