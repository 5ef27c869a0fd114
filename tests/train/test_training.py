"""The mechanism on the embedded digits: ten epochs, five seeds, wide margins.

Only what holds by several standard deviations over seeds is asserted. A positive gap of a fixed
filter follows from its construction; the learnable predictor's is evidence. Accuracies of the good
variants are too close together to be ordered here.
"""

import functools
import math
import multiprocessing
import statistics
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

SEEDS = range(10, 15)
VARIANTS = {
    "learnable": ["method=simsiam", "filter=learnable"],
    "identity": ["method=simsiam", "filter=identity"],
    "log1p": ["method=simsiam", "filter=online_log1p"],
    "pow": ["method=simsiam", "filter=target_pow", "p=-0.5"],
    "wrong way": ["method=simsiam", "filter=target_pow", "p=0.5"],
    "symsimsiam": ["method=symsimsiam"],
    "vanilla": ["method=vanilla", "method.last_bn=false"],
}

pytestmark = pytest.mark.training


Table = list[dict[str, float]]  # one row for each epoch


def train(parent: Path, name: str, seed: int) -> Table:
    import torch
    from support.small_runs import rows, run

    torch.set_num_threads(1)
    folder = parent / name / str(seed)
    options = [
        "dataset=digits",
        "max_epochs=10",
        "scheduler.warmup_epochs=2",
        "knn.every_n_epochs=0",
    ]
    options += ["backbone.kwargs.width=16", "trainer=cpu", "++trainer.check_val_every_n_epoch=10"]
    run(folder, *VARIANTS[name], *options, f"seed={seed}")
    return rows(folder)


@pytest.fixture(scope="module")
def tables(tmp_path_factory) -> dict[str, list[Table]]:
    """Train every variant with every seed."""
    folder = tmp_path_factory.mktemp("training")
    spawn = multiprocessing.get_context("spawn")
    jobs = {}
    with ProcessPoolExecutor(2, mp_context=spawn) as pool:
        for name in VARIANTS:
            jobs[name] = pool.map(functools.partial(train, folder, name), SEEDS)
        return {name: list(results) for name, results in jobs.items()}


def final_erank(tables: list[Table]) -> float:
    return statistics.mean(table[-1]["erank/projection"] for table in tables)


def test_filters_that_point_the_right_way_keep_the_rank_up(tables):
    identity = final_erank(tables["identity"])
    assert final_erank(tables["pow"]) >= 4 * identity
    assert final_erank(tables["log1p"]) >= 2 * identity
    assert final_erank(tables["wrong way"]) <= 0.75 * identity
    for table in tables["wrong way"]:
        assert table[-1]["erank/gap"] < 0
    for table in tables["pow"]:
        after_warm_up = table[2]["erank/projection"]
        growth = table[-1]["erank/projection"] / after_warm_up
        assert math.log(growth) >= 0.25


def test_the_learnable_predictor_keeps_the_target_above_the_online_branch(tables):
    for table in tables["learnable"]:
        for row in table:
            lead = row["erank/target"] / row["erank/online"]
            assert math.log(lead) >= 0.10


def test_centring_keeps_the_variance_but_not_the_rank(tables):
    for table in tables["symsimsiam"]:
        assert table[-1]["feature/variance"] >= 0.99
        assert table[-1]["erank/projection"] <= 3.2
    for table in tables["vanilla"]:  # without centring and the last batch norm: one point
        assert table[-1]["feature/variance"] <= 0.05
