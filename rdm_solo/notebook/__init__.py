"""Runs in Python, as in a notebook: train one, read its folder, draw its figures.

>>> import rdm_solo
>>> run = rdm_solo.fit(filter="target_pow", p=-0.5, max_epochs=20)  # doctest: +SKIP
>>> run.metrics["erank/target"], run.plot.spectra()  # doctest: +SKIP
>>> rdm_solo.Sweep("sweeps/exponents").best("val/knn_acc1")  # doctest: +SKIP
"""

from rdm_solo.notebook.fitting import fit
from rdm_solo.notebook.run_tables import Run
from rdm_solo.notebook.sweep_tables import Sweep

__all__ = ["Run", "Sweep", "fit"]
