"""The mechanism on the embedded digits: ten epochs, five seeds, wide margins.

Only what holds by several standard deviations over seeds is asserted. A positive gap of a fixed
filter follows from its construction; the learnable predictor's is evidence. Accuracies of the good
variants are too close together to be ordered here.
"""

import itertools
import math
import multiprocessing
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


def train_one(job: tuple[str, int, str]) -> tuple[str, list[dict[str, float]]]:
    import torch
    from support.small_runs import rows, run

    torch.set_num_threads(1)
    name, seed, out = job
    folder = Path(out) / name / str(seed)
    options = ["max_epochs=10", "scheduler.warmup_epochs=2", "knn.every_n_epochs=0"]
    options += ["backbone.kwargs.width=16", "trainer=cpu", "++trainer.check_val_every_n_epoch=10"]
    run(folder, *VARIANTS[name], *options, f"seed={seed}")
    return name, rows(folder)


@pytest.fixture(scope="module")
def curves(tmp_path_factory):
    out = str(tmp_path_factory.mktemp("training"))
    jobs = [(name, seed, out) for name in VARIANTS for seed in SEEDS]
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=spawn) as pool:
        results = list(pool.map(train_one, jobs))
    tables: dict[str, list[list[dict[str, float]]]] = {name: [] for name in VARIANTS}
    for name, table in results:
        tables[name].append(table)
    return tables


def final_erank(curves, name: str) -> float:
    last = [table[-1]["erank/projection"] for table in curves[name]]
    return sum(last) / len(last)


def test_filters_that_point_the_right_way_keep_the_rank_up(curves):
    assert final_erank(curves, "pow") >= 4 * final_erank(curves, "identity")
    assert final_erank(curves, "log1p") >= 2 * final_erank(curves, "identity")
    assert final_erank(curves, "wrong way") <= 0.75 * final_erank(curves, "identity")
    assert all(table[-1]["erank/gap"] < 0 for table in curves["wrong way"])
    for table in curves["pow"]:  # after the warm-up
        assert math.log(table[-1]["erank/projection"] / table[2]["erank/projection"]) >= 0.25


def test_the_learnable_predictor_keeps_the_target_above_the_online_branch(curves):
    for row in itertools.chain.from_iterable(curves["learnable"]):
        assert math.log(row["erank/target"] / row["erank/online"]) >= 0.10


def test_centring_keeps_the_variance_but_not_the_rank(curves):
    for table in curves["symsimsiam"]:
        assert table[-1]["feature/variance"] >= 0.99
        assert table[-1]["erank/projection"] <= 3.2
    for table in curves["vanilla"]:  # without centring and the last batch norm: one point
        assert table[-1]["feature/variance"] <= 0.05
