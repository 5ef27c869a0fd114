"""The figures of a run or a sweep, under the names that the report's list gives them."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure

from rdm_solo import plots
from rdm_solo.messages import UserError, check_choice
from rdm_solo.plots.preview import draw_prediction
from rdm_solo.plots.roles import draw as draw_roles
from rdm_solo.report.captions import DRAWINGS, Drawing
from rdm_solo.runs.folder import Run
from rdm_solo.runs.groups import Group, begun_groups, counted_runs
from rdm_solo.runs.prediction import predict


class Figures:
    """A method for each figure that ``python -m rdm_solo.report`` draws, each with its caption as
    docstring.

    Each returns a matplotlib figure, which a notebook shows if it is a cell's last value. It is
    neither saved nor known to ``pyplot``: ``figure.savefig("spectra.pdf")`` saves it. Where these
    runs have nothing to draw, a ValueError says why.
    """

    def __init__(self, runs: Sequence[Run]) -> None:
        self._groups = begun_groups(runs)
        self._runs = [run for group in self._groups for run in group.runs]

    if TYPE_CHECKING:  # the methods that are made below

        def __getattr__(self, name: str) -> Callable[[], Figure]: ...

    def __repr__(self) -> str:
        names = [name for name in dir(self) if not name.startswith("_")]
        return f"<figures: {', '.join(names)}>"


def _method(drawing: Drawing) -> Callable[[Figures], Figure]:
    draw: Callable[[Sequence[Run]], Figure] = getattr(plots, drawing.name)

    def figure(self: Figures) -> Figure:
        return draw(self._runs)

    figure.__name__ = drawing.name
    figure.__qualname__ = f"{Figures.__name__}.{drawing.name}"
    figure.__doc__ = f"{draw.__doc__}\n\n    {drawing.caption}"
    return figure


for _drawing in DRAWINGS:
    setattr(Figures, _drawing.name, _method(_drawing))


class RunFigures(Figures):
    __doc__ = Figures.__doc__

    def __init__(self, run: Run) -> None:
        super().__init__([run])
        self._run = run

    def epoch(self, epoch: int | None = None) -> Figure:
        """Eigenvalues of both branches and the filter curve in one measured epoch (the last)."""
        arrays = self._run.spectrum(epoch)
        return plots.epoch_picture(arrays, f"{self._run.label}, epoch {arrays['epoch']}")

    def prediction(self) -> Figure:
        """The effective ranks that Theorem 4 predicts from the first spectrum, and the measured."""
        return draw_prediction(predict(self._run))

    def roles(self, rows: int = 4096, device: str = "cpu", **options: Any) -> Figure:
        """What the run's asymmetric design does to a spectrum (the paper's Figure 5).

        The checkpoint's model gets ``rows`` training views again, so this takes seconds to minutes
        and needs what training needs. ``**{"dataset.root": "DATA"}`` replaces a value of the run's
        config, as on the command line of ``python -m rdm_solo.roles``.
        """
        return _roles([self._run], rows, device, options)


class SweepFigures(Figures):
    __doc__ = Figures.__doc__

    def prediction(self, setting: str | None = None) -> Figure:
        """The effective ranks that Theorem 4 predicts for a run of that setting, and the measured.

        ``setting`` is a label of the table of settings; where there is one setting, leave it out.
        """
        labels = {group.label: group for group in self._groups}
        if setting is None and len(labels) == 1:
            (setting,) = labels
        group: Group = labels[check_choice("setting", setting, labels)]
        return draw_prediction(predict(counted_runs(group)[0]))

    def roles(self, rows: int = 4096, device: str = "cpu", **options: Any) -> Figure:
        """What each method's asymmetric design does to a spectrum (the paper's Figure 5).

        Drawn of one run of each method, through its checkpoint.
        """
        from rdm_solo.report.figures import runs_with_roles

        chosen = runs_with_roles(self._groups)
        if not chosen:
            raise UserError("No run has an asymmetric design; this needs a checkpoint of one.")
        return _roles(chosen, rows, device, options)


def _roles(runs: Sequence[Run], rows: int, device: str, options: dict[str, Any]) -> Figure:
    from rdm_solo.evaluate.roles import measure  # with what training needs

    return draw_roles([measure(run.folder, rows, device, options, keep=False) for run in runs])
