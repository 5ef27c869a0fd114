"""The paper's figures from runs: each function draws, and returns a matplotlib figure.

>>> from pathlib import Path
>>> from rdm_solo import runs
>>> found = runs.find([Path("runs")])  # doctest: +SKIP
>>> save(effective_rank(found), Path("figures"), "erank")  # doctest: +SKIP
[PosixPath('figures/erank.png'), PosixPath('figures/erank.pdf')]
"""

from rdm_solo.plots.eigenvalues import epoch_picture, spectra, symmetric, variants
from rdm_solo.plots.epochs import accuracies, alignment, effective_rank, losses
from rdm_solo.plots.exponents import sweep
from rdm_solo.plots.measures import measures
from rdm_solo.plots.overview import comparison, overview
from rdm_solo.plots.style import save

__all__ = [
    "accuracies",
    "alignment",
    "comparison",
    "effective_rank",
    "epoch_picture",
    "losses",
    "measures",
    "overview",
    "save",
    "spectra",
    "sweep",
    "symmetric",
    "variants",
]
