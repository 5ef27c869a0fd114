"""A sweeper optimises ``optimized_metric`` in the direction that is better."""

import enum
from dataclasses import dataclass
from typing import Any

import pytest
import yaml
from hydra.core.config_store import ConfigStore

from rdm_solo.ground.errors import UserError
from rdm_solo.train import objective, sweep


class Direction(enum.Enum):
    minimize = 1
    maximize = 2


@dataclass
class Sweeper:
    """Options of a sweeper like Optuna's."""

    _target_: str = "builtins.dict"
    direction: Any = Direction.minimize


@pytest.fixture(autouse=True)
def _registered():
    """Register the sweeper for one test: Hydra pickles its registry for other launchers."""
    store = ConfigStore.instance()
    store.store(group="hydra/sweeper", name="optimising", node=Sweeper)
    yield
    del store.repo["hydra"]["sweeper"]["optimising.yaml"]


SWEEP = ["-m", "hydra/sweeper=optimising", "seed=1,2"]


@pytest.mark.parametrize(
    ("options", "added"),
    [
        ([], ["hydra.sweeper.direction=maximize"]),  # val/knn_acc1
        (["optimized_metric=val/acc1"], ["hydra.sweeper.direction=maximize"]),
        (["optimized_metric=train/loss"], ["hydra.sweeper.direction=minimize"]),
        (["hydra.sweeper.direction=maximize"], []),
        (["optimized_metric=erank/gap", "hydra.sweeper.direction=minimize"], []),
        (["optimized_metric=mine", "++hydra.sweeper.direction=minimize"], []),
    ],
)
def test_a_sweep_gets_the_direction_of_its_metric(options, added):
    argv = [*SWEEP, *options]
    assert objective.with_direction(argv) == [*argv, *added]


def test_a_sweep_over_all_values_gets_none():
    argv = ["-m", "seed=1,2", "optimized_metric=erank/gap"]
    assert objective.with_direction(argv) == argv


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["hydra.sweeper.direction=minimize"], "contradicts optimized_metric=val/knn_acc1"),
        (["optimized_metric=train/loss", "hydra.sweeper.direction=maximize"], "contradicts"),
        (["optimized_metric=erank/gap"], "pass hydra.sweeper.direction=maximize or"),
        (["optimized_metric=val/knn_acc"], "did you mean 'val/knn_acc1'"),
    ],
)
def test_a_wrong_or_missing_direction_is_refused(options, message):
    with pytest.raises(UserError, match=message):
        objective.with_direction([*SWEEP, *options])


@pytest.mark.long
@pytest.mark.parametrize(("metric", "best"), [("val/knn_acc1", 3), ("train/loss", 1)])
def test_optuna_finds_the_best_run(metric, best, train, tmp_path, monkeypatch):
    pytest.importorskip("hydra_plugins.hydra_optuna_sweeper")
    monkeypatch.setattr(sweep, "run_command", lambda cfg: cfg.seed)  # no training
    out = train(
        "-m",
        "hydra/sweeper=optuna",
        "hydra/sweeper/sampler=grid",
        "hydra.sweeper.n_jobs=1",
        "hydra.sweep.dir=sweep",
        "seed=choice(2,3,1)",
        f"optimized_metric={metric}",
    )
    assert f"Best value: {best}" in out.stdout
    results = yaml.safe_load((tmp_path / "sweep" / "optimization_results.yaml").read_text())
    assert results["best_params"] == {"seed": best}
