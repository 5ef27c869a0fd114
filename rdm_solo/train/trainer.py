"""Lightning's Trainer and the callbacks of a run, from its config."""

import inspect
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from rdm_solo.callbacks.checkpoints import CheckpointFiles, Checkpoints
from rdm_solo.callbacks.order import in_order
from rdm_solo.cli.answers import instantiate
from rdm_solo.lightning import pl, slurm_environment
from rdm_solo.messages import UserError
from rdm_solo.train import derived_values, signals

log = logging.getLogger("rdm_solo")


def make_callbacks(nodes: Mapping[str, Any], **of_the_run: Any) -> list[Any]:
    """The callbacks of these nodes, in order; None stands for one that was left out.

    A constructor also gets those values of the run that it has a parameter for.
    """
    made = []
    for name, node in nodes.items():
        if node is None:
            continue
        start = instantiate(node, _partial_=True) if OmegaConf.is_dict(node) else node
        kind = getattr(start, "func", None)
        if not (inspect.isclass(kind) and issubclass(kind, pl.Callback)):
            raise UserError(
                f"callbacks.{name} must name a class derived from rdm_solo.lightning.pl.Callback "
                f"as its _target_, got {getattr(node, '_target_', node)!r}."
            )
        wanted = inspect.signature(kind).parameters
        try:
            made.append(start(**{key: of_the_run[key] for key in of_the_run if key in wanted}))
        except TypeError as error:
            raise UserError(f"callbacks.{name} cannot be made: {error}") from error
    return made


def make_trainer(cfg: DictConfig, processes: int, folder: Path, callbacks: Sequence[Any]) -> Any:
    """Lightning's Trainer of a run: its checkpoints, how it answers signals, and the callbacks."""
    options: dict[str, Any] = OmegaConf.to_container(cfg.trainer, resolve=True)
    if options["accelerator"] == "auto":  # Lightning would take Apple's, which has no float64
        options["accelerator"] = "cpu" if derived_values.on_cpu(cfg.trainer) else "gpu"
    if options["sync_batchnorm"] is None:
        options["sync_batchnorm"] = processes > 1 and options["accelerator"] != "cpu"
    bars = [c for c in callbacks if isinstance(c, pl.callbacks.ProgressBar)]
    if not options["enable_progress_bar"]:
        callbacks = [c for c in callbacks if c not in bars]
    options["enable_progress_bar"] &= bool(bars)  # without one, Lightning would add its own
    checkpoint = Checkpoints(folder, **cfg.get("checkpoint", {}))
    answer = pl.callbacks.LambdaCallback(
        on_exception=_say_that_it_stops,
        on_train_start=lambda *_: signals.take_back(),
        on_train_batch_start=lambda *_: signals.check(),
        on_validation_batch_start=lambda *_: signals.check(),
    )
    on_slurm = slurm_environment()
    # Its own checkpoint, in the middle of an epoch, would not repeat the uninterrupted run.
    cluster = [on_slurm(auto_requeue=False)] if on_slurm.detect() else []
    defaults = {
        "plugins": [CheckpointFiles(folder), *cluster],
        "max_epochs": cfg.max_epochs,
        "default_root_dir": folder,
        "logger": False,  # ours are opened once Lightning has accepted everything
        "callbacks": [answer, *in_order(callbacks), checkpoint],
        "num_sanity_val_steps": 0,
        "use_distributed_sampler": False,
        "enable_model_summary": False,
        "log_every_n_steps": 1,
    }
    refusals = (
        TypeError,
        ValueError,
        RuntimeError,
        pl.utilities.exceptions.MisconfigurationException,
    )
    try:
        return pl.Trainer(**{**defaults, **options})
    except refusals as error:
        reason = str(error).removeprefix("Trainer.__init__() ")
        raise UserError(f"Lightning's Trainer refuses trainer=...: {reason}") from error


def _say_that_it_stops(trainer: Any, pl_module: Any, exception: BaseException) -> None:
    """Answers a signal at once; closing the loggers and drawing take a moment."""
    if isinstance(exception, KeyboardInterrupt) and trainer.is_global_zero:
        word = str(exception) or "Ctrl-C"
        log.info(f"{word}: the run stops in epoch {trainer.current_epoch + 1}")
