"""The command ``rdm-solo measure``, whose ``--help`` does not import torch."""

import sys

from omegaconf import DictConfig

from rdm_solo.cli import arguments


def _job(cfg: DictConfig) -> None:
    from rdm_solo.measure.side_by_side import measure  # with torch and matplotlib: seconds

    measure(cfg)


arguments.command(_job, "measure", sys.argv[1:])
