"""Warn once about each kind of collapse, using the rules of :mod:`rdm_solo.collapse.rules`."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rdm_solo.collapse.rules import RULE, Bounds, MeasuredEpoch, kinds_of_collapse
from rdm_solo.ground.distributed import broadcast_object, rank

log = logging.getLogger("rdm_solo")


@dataclass
class Alarm:
    """Warn once about each kind of collapse. Rank 0 decides for all processes.

    ``advise(kind, epoch=...)`` returns the likeliest cause and the remedy; its epoch counts from 0,
    as in schedules. ``option(name, value)`` formats a bound as the user passes it. ``epochs`` are
    the earlier epochs.
    """

    bounds: Bounds
    advise: Callable[..., str]
    option: Callable[[str, Any], str]
    epochs: list[MeasuredEpoch] = field(default_factory=list)
    warnings: list[dict[str, Any]] = field(default_factory=list)

    def update(self, epoch: MeasuredEpoch) -> list[str]:
        """Add an epoch, and return the kinds of collapse that occur for the first time."""
        self.epochs.append(epoch)
        earlier_kinds = [warning["kind"] for warning in self.warnings]
        kinds = kinds_of_collapse(self.epochs, self.bounds)
        new_kinds = [kind for kind in kinds if kind not in earlier_kinds]
        new_kinds = broadcast_object(new_kinds)
        for kind in new_kinds:
            rule = RULE[kind]
            sentence = rule.sentence(self.epochs, self.bounds, self.option)
            advice = self.advise(kind, epoch=epoch.epoch - 1)
            text = f"{sentence} {advice}"
            warning = {"kind": kind, "epoch": epoch.epoch, "text": text, "advice": advice}
            self.warnings.append(warning)
            if rank() == 0:
                level = "note" if rule.note else "warning"
                log.warning(f"{level}: {text}")
        return new_kinds
