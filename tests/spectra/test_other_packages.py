"""``compatible_with`` beside the packages themselves, and what makes them differ."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from support.second_device import DEVICE

from rdm_solo.spectra import alpha_req, correlation, effective_rank, lidar, rankme

# Where .ci/run has put them, without what they depend on.
PACKAGES = os.environ.get("RDM_SOLO_OTHER_PACKAGES")
SCRIPT = Path(__file__).parents[1] / "support" / "other_packages.py"


def features(steepness: float) -> tuple[torch.Tensor, torch.Tensor]:
    """512 rows whose second moment has eigenvalues i^-steepness; and four views each of 300."""
    draw = torch.Generator().manual_seed(0)
    scale = torch.arange(1, 129).double() ** (-steepness / 2)
    u = torch.linalg.qr(torch.randn(512, 128, generator=draw, dtype=torch.float64))[0]
    x = math.sqrt(512) * u * scale
    means = torch.randn(300, 1, 128, generator=draw, dtype=torch.float64) * scale
    views = means + 0.3 * torch.randn(300, 4, 128, generator=draw, dtype=torch.float64)
    return x, views


def ours(x: torch.Tensor, views: torch.Tensor) -> dict[str, float]:
    alpha, r2 = alpha_req(x, compatible_with="reptrix")
    found = {
        "rankme stable-pretraining": rankme(x, compatible_with="stable-pretraining"),
        "rankme reptrix": rankme(x, compatible_with="reptrix"),
        "lidar stable-pretraining": lidar(views, compatible_with="stable-pretraining"),
        "lidar reptrix": lidar(views, compatible_with="reptrix"),
        "alpha_req reptrix": alpha,
        "alpha_req_r2 reptrix": r2,
        "effective_rank monai": effective_rank(x, compatible_with="monai"),
    }
    return {name: float(value) for name, value in found.items()}


@pytest.mark.process
@pytest.mark.skipif(not PACKAGES, reason="the other packages are not here (.ci/run brings them)")
def test_the_packages_give_these_numbers(tmp_path):
    given = [features(steepness) for steepness in (0.2, 1.0, 2.0)]
    files = [tmp_path / f"{number}.npz" for number in range(len(given))]
    for file, (x, views) in zip(files, given):
        np.savez(file, x=x.numpy(), views=views.numpy())
    command = [sys.executable, str(SCRIPT), str(PACKAGES), *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    for own, theirs in zip(given, found, strict=True):
        assert ours(*own) == pytest.approx(theirs, rel=1e-6, abs=1e-9)


def test_what_they_call_by_one_name_differs():
    """On singular values 1/i, 512 rows of 128 dimensions."""
    x, _ = features(2.0)
    definition = float(rankme(correlation(x)))
    assert definition == pytest.approx(46.955, abs=1e-3)
    assert float(rankme(x, compatible_with="stable-pretraining")) == pytest.approx(47.228, abs=1e-3)
    assert float(rankme(x, compatible_with="reptrix")) == pytest.approx(4.877, abs=1e-3)
    assert float(effective_rank(x, compatible_with="monai")) == pytest.approx(0.633, abs=1e-3)


def test_a_queue_of_all_first_views_reverses_lidars_ranking():
    """Flat spectra have the higher rank by definition."""
    flat, steep = (features(s)[1] for s in (0.0, 2.0))
    assert lidar(flat) > lidar(steep)
    wrong = [float(lidar(v, compatible_with="stable-pretraining")) for v in (flat, steep)]
    assert wrong[0] < wrong[1]


EVERY = [
    (rankme, "stable-pretraining"),
    (rankme, "reptrix"),
    (rankme, "monai"),
    (effective_rank, "monai"),
    (alpha_req, "reptrix"),
    (lidar, "stable-pretraining"),
    (lidar, "reptrix"),
]


@pytest.mark.parametrize(("measure", "package"), EVERY)
def test_no_features_are_refused(measure, package):
    empty = torch.ones(0, 4, 128) if measure is lidar else torch.ones(0, 128)
    with pytest.raises(ValueError, match=r"got \(0, "):
        measure(empty, compatible_with=package)


def numbers(device: str) -> list[float]:
    rows, views = (x.to(device) for x in features(1.0))
    given = [(m, views if m is lidar else rows, package) for m, package in EVERY]
    found = [measure(x, compatible_with=package) for measure, x, package in given]
    pairs = [each if isinstance(each, tuple) else (each,) for each in found]
    return [float(value.cpu()) for pair in pairs for value in pair]


def test_numbers_do_not_depend_on_the_device(on_second_device):
    assert on_second_device(numbers, DEVICE) == pytest.approx(numbers("cpu"), rel=1e-9)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize(("measure", "package"), EVERY)
def test_features_that_are_not_finite_give_nan(measure, package, bad):
    rows, views = features(1.0)
    given = views.clone() if measure is lidar else rows.clone()
    given[1, ..., 3] = bad
    found = measure(given, compatible_with=package)
    for value in found if isinstance(found, tuple) else (found,):
        assert value.dtype == torch.float64
        assert value.ndim == 0
        assert value.isnan()


@pytest.mark.parametrize(
    ("measure", "package", "options"),
    [
        (rankme, "stable-pretraining", {"eps": 1e-3}),
        (rankme, "reptrix", {"eps": 1e-7}),
        (rankme, "monai", {"eps": 1e-3}),
        (lidar, "reptrix", {"delta": 1e-3}),
        (lidar, "reptrix", {"eps": 1e-3}),
    ],
)
def test_an_option_that_a_package_does_not_have_is_refused(measure, package, options):
    rows, views = features(1.0)
    (name,) = options
    with pytest.raises(ValueError, match=f"compatible_with='{package}'.* {name}"):
        measure(views if measure is lidar else rows, compatible_with=package, **options)


def test_options_that_a_package_has_are_taken():
    rows, views = features(1.0)
    flat = lidar(views, delta=10.0, compatible_with="stable-pretraining")
    assert flat != lidar(views, compatible_with="stable-pretraining")
    assert lidar(views, 1e-4, 1e-8) == lidar(views)
    assert rankme(correlation(rows), 1e-7) == rankme(correlation(rows))
    first = alpha_req(rows, first=2, last=50, compatible_with="reptrix")
    assert first != alpha_req(rows, compatible_with="reptrix")
