"""The direction in which a sweeper optimises ``optimized_metric``."""

import enum
from collections.abc import Sequence
from typing import Any

from rdm_solo.cli.arguments import compose
from rdm_solo.ground.errors import UserError, suggest
from rdm_solo.runs.columns import COLUMNS

OPTION = "hydra.sweeper.direction"
DIRECTIONS = {"higher": "maximize", "lower": "minimize"}


def with_direction(argv: Sequence[str]) -> list[str]:
    """Add the direction of ``optimized_metric`` to the arguments of a sweep that needs one.

    Optuna's sweeper minimises by default, so it would search for the lowest accuracy.
    """
    cfg: Any = compose("config", argv, with_hydra=True)
    if "direction" not in cfg.hydra.sweeper:  # Hydra's own sweeper runs all values
        return list(argv)
    metric = cfg.optimized_metric
    better = COLUMNS[metric].better if metric in COLUMNS else ""
    direction = DIRECTIONS.get(better)
    chosen = cfg.hydra.sweeper.direction
    if isinstance(chosen, enum.Enum):  # the sweeper's own default
        if direction is None:
            hint = "" if metric in COLUMNS else suggest(metric, COLUMNS)
            raise UserError(
                f"optimized_metric={metric} may be better if it is higher or lower: pass "
                f"{OPTION}=maximize or {OPTION}=minimize{hint}"
            )
        return [*argv, f"{OPTION}={direction}"]
    if direction not in (None, chosen):
        raise UserError(
            f"{OPTION}={chosen} contradicts optimized_metric={metric}, which is better if it is "
            f"{better}: leave {OPTION} out."
        )
    return list(argv)
