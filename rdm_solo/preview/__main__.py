"""The command ``rdm-solo preview``, whose ``--help`` does not import torch."""

import sys

from omegaconf import DictConfig

from rdm_solo.cli import arguments


def _job(cfg: DictConfig) -> None:
    from rdm_solo.preview.show import preview  # with torch and matplotlib: seconds

    preview(cfg)


arguments.command(_job, "preview", sys.argv[1:])
