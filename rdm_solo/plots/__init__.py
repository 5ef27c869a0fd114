"""The paper's figures: each entry of ``PLOTS`` draws runs as a matplotlib figure.

Modules are imported on first use, so a training run only loads the figure that it draws.

>>> from pathlib import Path
>>> from rdm_solo import plots, runs
>>> figure = plots.effective_rank(runs.find([Path("runs")]))  # doctest: +SKIP
>>> plots.save(figure, Path("figures"), "erank")  # doctest: +SKIP
[PosixPath('figures/erank.png'), PosixPath('figures/erank.pdf')]
"""

from typing import TYPE_CHECKING, Any

from rdm_solo import import_on_first_use

if TYPE_CHECKING:
    from rdm_solo.plots.eigenvalues import epoch_picture as epoch_picture
    from rdm_solo.plots.filter_function import draw_filter as draw_filter
    from rdm_solo.plots.plot import Plot as Plot

# In the report's order. The report shows four without a click.
_FIGURES = (
    "sweep",
    "comparison",
    "effective_rank",
    "accuracies",
    "losses",
    "spectra",
    "symmetric",
    "variants",
    "alignment",
    "measures",
    "other_charts",
)
_NAMES = (*_FIGURES, "Plot", "draw_filter", "epoch_picture", "rank_picture", "save")
__all__ = ["PLOTS", *_NAMES]

_find = import_on_first_use(
    _NAMES,
    "rdm_solo.plots.style",
    "rdm_solo.plots.epoch_ranks",
    "rdm_solo.plots.filter_function",
    "rdm_solo.plots.plot",
    "rdm_solo.plots.eigenvalues",
    "rdm_solo.plots.epochs",
    "rdm_solo.plots.across_settings",
)


def __getattr__(name: str) -> Any:
    if name == "PLOTS":
        return tuple(_find(figure) for figure in _FIGURES)
    return _find(name)
