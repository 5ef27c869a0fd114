"""Going on with a run: in its own folder, or from another one's checkpoint."""

import contextlib
import logging
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from rdm_solo import cli
from rdm_solo.messages import UserError
from rdm_solo.runs import (
    checkpoints,
    earlier_run,
    metrics_file,
    reading,
    saved_config,
)
from rdm_solo.runs.files import CHECKPOINT, CONFIG, FIGURES, METRICS, PLANNED, SPECTRA
from rdm_solo.runs.folder import diverged_in
from rdm_solo.train import checks, resume_options, run_folder

log = logging.getLogger("rdm_solo")

# What a run that goes on writes to: no link may lead it elsewhere.
WRITTEN = (".hydra", "train.log", "owner.json", "checkpoints", SPECTRA, FIGURES)
WRITTEN += ("tensorboard", "wandb")
# Options that name a function; one of the user's own counts only where it is typed again.
NAMES = ("._target_", "filter.function")
# What Lightning goes on from, beside the epoch and the weights.
PARTS = ("pytorch-lightning_version", "loops", "optimizer_states", "lr_schedulers", "callbacks")


def own_config(argv: list[str], first: bool = True) -> tuple[DictConfig, Path]:
    """Config and folder of the run that ``resume=FOLDER`` goes on with, with the options that were
    typed beside it; checked by the ``first`` of its processes, which may write there already.
    """
    cli.say_anything()
    cli.log_to_terminal()
    given = dict(argument.partition("=")[::2] for argument in argv)
    folder = Path(given.pop("resume").strip("'\""))
    with cli.sentences():
        if first:
            run_folder.end_what_was_cut_short(folder)
        cfg = changed_config(folder, given)
        folder = folder.resolve()
        if first:
            diverged = diverged_in(folder)
            that = f", which diverged in epoch {diverged}" if diverged else ""
            print(f"going on in {folder}{that}", flush=True)
            with reading.named(folder):
                checks.check(cfg)
    cfg.resume = str(folder)
    return cfg, folder


def sweep_in(argv: list[str]) -> Path | None:
    """The folder of a sweep, where that is what ``resume=`` names; a run's own folder is none."""
    given = dict(argument.partition("=")[::2] for argument in argv)
    folder = Path(given["resume"].strip("'\""))
    if (folder / CONFIG).is_file():
        return None
    return folder if (folder / PLANNED).is_dir() or (folder / "multirun.yaml").is_file() else None


def changed_config(folder: Path, given: dict[str, str]) -> DictConfig:
    """The config of the run to go on with, with the options typed beside ``resume=``."""
    path = folder / CONFIG
    if not path.is_file():
        raise UserError(f"resume={folder} holds no {CONFIG}; give a run's folder.")
    cfg = saved_config.with_references(folder)
    # Names of the user's own functions, which count where they are typed again.
    again = {k.lstrip("+"): given.pop(k) for k in list(given) if k.endswith(NAMES)}
    for key, value in again.items():
        OmegaConf.update(cfg, key, value, force_add=True)
    typed = cli.compose("config", [f"{k}={v}" for k, v in given.items() if k[0] != "~"])
    with reading.named(folder):
        _add_callbacks(cfg, typed.callbacks)
    resume_options.put(cfg, typed, list(given), folder)
    names = [*again, *(name.lstrip("+") for name in given if name != "trainer")]
    if "trainer" in given:  # of which the options for the machine alone are taken
        names += [
            f"trainer.{name}" for name in resume_options.FREE_TRAINER if name in typed.trainer
        ]
    if "logger" not in names and OmegaConf.select(cfg, "logger.wandb"):
        # A folder's word is not enough to send anything.
        OmegaConf.update(cfg, "logger.wandb.offline", True)
        log.info("Weights & Biases stays offline; type logger=wandb again to send this run")
    for name in WRITTEN:
        reading.inside(folder, name)
    for name in ("train.log", "owner.json"):
        if (folder / name).exists():
            reading.regular(folder, name)  # a pipe would be waited for
    parts = [part for part in (*typed, "logger") if part != "resume"]
    cfg = saved_config.to_build(cfg, folder, parts, names, references=True)
    OmegaConf.set_struct(cfg, True)
    cfg.resume = None
    return cfg


def _add_callbacks(cfg: DictConfig, shipped: DictConfig) -> None:
    """Add the shipped callbacks: before they were a group, a config listed the user's own alone."""
    own = cfg.get("callbacks") or OmegaConf.create()
    if not OmegaConf.is_dict(own):
        return  # which is refused with the rest of the config
    plain: Any = OmegaConf.to_container(own)
    targets = [str(node.get("_target_")) for node in plain.values() if isinstance(node, dict)]
    if not any(target.startswith("rdm_solo.callbacks.") for target in targets):
        cfg.callbacks = OmegaConf.merge(shipped, own)


def check_resume(cfg: DictConfig, folder: Path) -> tuple[Path, int, int]:
    """The checkpoint to go on from, its step and the epochs done by then; refuses another
    experiment or a finished run.

    The log says where it is not the last one.
    """
    config = folder / CONFIG
    if not checkpoints.present(folder):
        raise UserError(f"resume={folder} holds no {CHECKPOINT}; give a run's folder.")
    saved = saved_config.run_config(folder) if config.is_file() else None
    if saved is not None:
        resume_options.check_same(saved, cfg, folder)
    with reading.named(folder / METRICS), contextlib.suppress(FileNotFoundError):
        if "epoch" not in metrics_file.read(folder).columns:
            raise UserError("it has no column epoch")
    checkpoint, found = checkpoints.latest(folder)
    if lacking := [part for part in PARTS if part not in found]:
        raise reading.Unreadable(checkpoint, f"it lacks {', '.join(lacking)}")
    done = found["epoch"] + 1
    if done > cfg.max_epochs or (done == cfg.max_epochs and earlier_run.has_ended(folder)):
        raise UserError(
            f"resume={folder} has finished {done} epochs and max_epochs={cfg.max_epochs}; raise "
            "max_epochs to go on."
        )
    return checkpoint, int(found.get("global_step", 0)), int(done)
