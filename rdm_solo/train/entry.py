"""The command python -m rdm_solo.train: one run, or the runs of a sweep."""

from __future__ import annotations

import os
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from rdm_solo import cli
from rdm_solo.runs.files import CONFIG
from rdm_solo.train.training import run

# Lightning starts the other processes of a DDP run with this process's command line. They read the
# composed config of the first one instead of composing (or, in a multirun, sweeping) again.
CONFIG_VARIABLE, FOLDER_VARIABLE = "RDM_SOLO_CONFIG", "RDM_SOLO_FOLDER"


def _job(cfg: DictConfig) -> None:
    """One Hydra job."""
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode

    from rdm_solo.train import sweep

    folder = Path(HydraConfig.get().runtime.output_dir)
    before = dict(os.environ)
    os.environ[CONFIG_VARIABLE] = str(folder / CONFIG)
    os.environ[FOLDER_VARIABLE] = str(folder)
    try:
        run(cfg, folder)
    except (Exception, cli.Refusal) as error:
        if HydraConfig.get().mode is not RunMode.MULTIRUN:
            raise
        sweep.note_failure(folder, error)  # the sweep's other runs go on
    finally:
        # Lightning leaves its rank and port behind, by which the next job of a sweep would take
        # itself for a process that somebody else started.
        for name in set(os.environ) - set(before):
            del os.environ[name]
        _leave_process_group()


def _leave_process_group() -> None:
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


def main() -> None:
    """The command."""
    if CONFIG_VARIABLE in os.environ and "LOCAL_RANK" in os.environ:
        cli.say_anything()
        run(OmegaConf.load(os.environ[CONFIG_VARIABLE]), Path(os.environ[FOLDER_VARIABLE]))  # type: ignore[arg-type]
        return
    cli.command(_job, "config")
