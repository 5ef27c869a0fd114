"""Names and values of what the loggers draw from spectra."""

from collections.abc import Mapping

import numpy as np

PICTURE = "pictures/spectra"


def histograms(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the base-10 logarithms of an epoch's eigenvalues by histogram name.

    >>> histograms({"lam_online": np.array([100.0, 0.0]), "rows": np.array(64)})
    {'spectra/log10_online': array([2.])}
    """
    values = {}
    for name, array in arrays.items():
        if name.startswith("lam_") and (array > 0).any():
            positive = array[array > 0]
            values[name.replace("lam_", "spectra/log10_")] = np.log10(positive)
    return values
