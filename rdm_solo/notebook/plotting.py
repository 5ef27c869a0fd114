"""The figures of a run or a sweep, as methods."""

from collections.abc import Callable, Sequence

from matplotlib.figure import Figure

from rdm_solo import plots
from rdm_solo.report.figures import PLOTS
from rdm_solo.runs.folder import RunFolder
from rdm_solo.runs.groups import started_groups


class Figures:
    """A method for each figure of ``rdm-solo report``, with its caption as docstring.

    Each returns a matplotlib figure, which a notebook shows if it is a cell's last value. It is
    neither saved nor registered with ``pyplot``; ``figure.savefig("spectra.pdf")`` saves it. If
    these runs lack the data, a ValueError names what the figure needs. ``figure5`` rebuilds models
    from checkpoints, which takes seconds per setting and needs the packages for training.
    """

    def __init__(self, runs: Sequence[RunFolder]) -> None:
        self._groups = started_groups(runs)
        self._plots = {plot.name: plot for plot in PLOTS}

    def __getattr__(self, name: str) -> Callable[[], Figure]:
        if name.startswith("_") or name not in self._plots:
            raise AttributeError(f"there is no figure {name!r}: {self}")
        plot = self._plots[name]

        def figure() -> Figure:
            return plot(self._groups)

        figure.__name__ = name
        figure.__doc__ = f"{plot.title}.\n\n{plot.caption}"
        return figure

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._plots]

    def __repr__(self) -> str:
        names = [name for name in dir(self) if not name.startswith("_")]
        return f"<figures: {', '.join(names)}>"


class RunFigures(Figures):
    __doc__ = Figures.__doc__

    def __init__(self, run: RunFolder) -> None:
        super().__init__([run])
        self._run = run

    def epoch(self, epoch: int | None = None) -> Figure:
        """Draw both branches' eigenvalues and the filter curve of an epoch, by default the last."""
        arrays = self._run.spectrum(epoch)
        return plots.epoch_picture(arrays, f"{self._run.label}, epoch {arrays['epoch']}")
