"""Run in a process of its own: what other packages give for the features in each file, as JSON.

    python other_packages.py PACKAGES FEATURES.npz ...

PACKAGES holds them as `uv pip install --no-deps --target` leaves them. Of
stable-pretraining single modules are imported, since the package asks for much else.
"""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import torch


def without_its_init(name: str, folder: Path) -> None:
    """Let modules of a package be imported without what the package itself imports."""
    package = types.ModuleType(name)
    package.__path__ = [str(folder / name.replace(".", "/"))]
    sys.modules[name] = package


def stable_pretraining(x: torch.Tensor, views: torch.Tensor) -> dict[str, float]:
    from stable_pretraining.callbacks.lidar import LiDAR
    from stable_pretraining.callbacks.rankme import RankMe

    n, q, k = views.shape
    options = {"target": "z", "target_shape": k, "verbose": False}
    logged = {}
    module = SimpleNamespace(log=lambda name, value, **_: logged.update({name: float(value)}))
    lidar = LiDAR("lidar", queue_length=n * q, n_classes=n, samples_per_class=q, **options)
    rankme = RankMe("rankme", queue_length=len(x), **options)
    # A batch of two views: all first ones, then all second ones.
    for callback, rows in ((lidar, views.transpose(0, 1).reshape(n * q, k)), (rankme, x)):
        callback._target_queue = SimpleNamespace(data=rows)
        callback.on_validation_batch_end(SimpleNamespace(global_rank=0), module, {}, {}, 0)
    return {f"{name} stable-pretraining": value for name, value in logged.items()}


def reptrix(x: torch.Tensor, views: torch.Tensor) -> dict[str, float]:
    from reptrix.alpha import get_alpha
    from reptrix.lidar import get_lidar
    from reptrix.rankme import get_rankme

    alpha, _, r2, _ = get_alpha(x)
    return {
        "rankme reptrix": get_rankme(x),
        "lidar reptrix": get_lidar(views, *views.shape[:2]),
        "alpha_req reptrix": alpha,
        "alpha_req_r2 reptrix": r2,
    }


def monai(x: torch.Tensor) -> dict[str, float]:
    from monai.metrics.embedding_collapse import _effective_rank_score

    return {"effective_rank monai": float(_effective_rank_score(x))}


if __name__ == "__main__":
    packages = Path(sys.argv[1])
    sys.path.append(str(packages))
    for name in ("stable_pretraining", "stable_pretraining.callbacks"):
        without_its_init(name, packages)
    sys.modules["stable_pretraining.callbacks.queue"] = MagicMock()  # replaced by the rows above
    silent = MagicMock(resolve_verbose=lambda verbose: False)
    sys.modules["stable_pretraining.callbacks.utils"] = silent
    sys.modules["loguru"] = MagicMock()
    all_found = []
    for path in sys.argv[2:]:
        given = {k: torch.from_numpy(v) for k, v in np.load(path).items()}
        found = stable_pretraining(**given) | reptrix(**given) | monai(given["x"])
        all_found.append({name: float(value) for name, value in found.items()})
    print(json.dumps(all_found))
