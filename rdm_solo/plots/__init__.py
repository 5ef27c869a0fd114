"""The paper's figures from runs: each entry of :data:`PLOTS` draws runs as a matplotlib figure.

>>> from pathlib import Path
>>> from rdm_solo import runs
>>> figure = effective_rank(runs.find([Path("runs")]))  # doctest: +SKIP
>>> save(figure, Path("figures"), "erank")  # doctest: +SKIP
[PosixPath('figures/erank.png'), PosixPath('figures/erank.pdf')]
"""

from rdm_solo.plots.eigenvalues import epoch_picture, spectra, symmetric, variants
from rdm_solo.plots.entry import Plot
from rdm_solo.plots.epochs import (
    accuracies,
    alignment,
    effective_rank,
    losses,
    measures,
)
from rdm_solo.plots.prediction import prediction
from rdm_solo.plots.settings import comparison, sweep
from rdm_solo.plots.style import save

# In the report's order; the first that the runs have is on its first screen.
PLOTS = (
    sweep,
    comparison,
    effective_rank,
    losses,
    accuracies,
    symmetric,
    spectra,
    variants,
    alignment,
    measures,
    prediction,
)

__all__ = [
    "PLOTS",
    "Plot",
    "accuracies",
    "alignment",
    "comparison",
    "effective_rank",
    "epoch_picture",
    "losses",
    "measures",
    "prediction",
    "save",
    "spectra",
    "sweep",
    "symmetric",
    "variants",
]
