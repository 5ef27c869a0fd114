"""The paper's figures: each entry of ``PLOTS`` draws settings as a matplotlib figure.

Modules are imported on first use, so a training run only loads the figures over epochs.

>>> from pathlib import Path
>>> from rdm_solo import plots, runs
>>> from rdm_solo.runs.groups import by_setting
>>> members, errors = runs.scan([Path("runs")])  # doctest: +SKIP
>>> settings = by_setting(members)  # doctest: +SKIP
>>> figure = plots.effective_rank(settings)  # doctest: +SKIP
>>> plots.save(figure, Path("figures"), "erank")  # doctest: +SKIP
[PosixPath('figures/erank.png'), PosixPath('figures/erank.pdf')]
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rdm_solo.plots.eigenvalues import epoch_picture as epoch_picture
    from rdm_solo.plots.filter_function import draw_filter as draw_filter
    from rdm_solo.plots.plot import Plot as Plot

# The module of each figure, in the report's order. The report shows four without a click.
_FIGURES = {
    "switch": "switches",
    "sweep": "across_settings",
    "comparison": "across_settings",
    "effective_rank": "epochs",
    "accuracies": "epochs",
    "losses": "epochs",
    "spectra": "eigenvalues",
    "symmetric": "eigenvalues",
    "variants": "eigenvalues",
    "alignment": "epochs",
    "measures": "epochs",
    "other_charts": "epochs",
}
_MODULES = {
    **_FIGURES,
    "Plot": "plot",
    "draw_filter": "filter_function",
    "epoch_picture": "eigenvalues",
    "rank_picture": "epochs",
    "save": "style",
}
__all__ = ["PLOTS", *_MODULES]


def __getattr__(name: str) -> Any:
    if name == "PLOTS":
        return tuple(map(__getattr__, _FIGURES))
    if name in _MODULES:
        module = import_module(f"rdm_solo.plots.{_MODULES[name]}")
        return getattr(module, name)
    raise AttributeError(f"rdm_solo.plots has no attribute {name!r}")
