"""Watch a PyTorch loop, which calls ``step`` after each step and ``end_epoch`` after each epoch."""

import importlib
import logging
import math
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from rdm_solo.collapse.alarm import Alarm
from rdm_solo.collapse.health import health
from rdm_solo.collapse.rules import DESTROYED, RULE, WRONG_WAY, Bounds
from rdm_solo.ground.distributed import broadcast_object, gather_objects, rank
from rdm_solo.ground.errors import UserError, suggest
from rdm_solo.ground.values import check_choice, check_integer, check_number
from rdm_solo.methods.descriptions import METHODS
from rdm_solo.observe import parts
from rdm_solo.observe.branches import Observer
from rdm_solo.observe.loop_checks import Finding, LoopChecks
from rdm_solo.observe.loss_record import LossRecord
from rdm_solo.observe.parts import ModuleObserver, ReturnedOutputs
from rdm_solo.observe.recorder import EpochRow, Limits, Recorder
from rdm_solo.observe.step_size import LARGE, StepSize
from rdm_solo.runs.columns import ACCURACY, COLUMNS
from rdm_solo.runs.epoch_line import epoch_line
from rdm_solo.watch.fixed_images import KNN, FixedImages
from rdm_solo.watch.watch_folder import WatchFolder, plain_settings

log = logging.getLogger("rdm_solo")

# The columns that the user can pass to end_epoch; all others are measured.
USER_SCALARS = [c.name for c in COLUMNS.values() if c.chart == ACCURACY or c.name == "train/loss"]

BOUNDS = Bounds()
LIMITS = [field.name for field in fields(Limits)]

ADVICE = (
    "Check the loop first: the target must get no gradient (detach it), {predictor}a momentum must "
    "lie between 0 and 1, and the heads need batch norm. Then try a lower learning rate and a "
    "longer warm-up."
)


class Collapsed(RuntimeError):
    """Raised by a watch with ``stop=True`` when it reports a collapse or a mistake in the loop."""


class Watch:
    """Measure both branches' spectra in each epoch, warn about collapse, and write a folder for
    ``rdm-solo report``.

    Forward hooks record the branches' outputs in training. There is no additional forward pass and
    no random number is drawn. In the first ten steps the loop itself is checked for mistakes, such
    as a missing stop-gradient. Under ``torch.distributed``, all processes must make the same steps.
    Their moments are summed, and rank 0 writes.

    Args:
        folder: the run's folder; no other run may use it.
        model: the module, wrapped or not, or several modules by name.
        online, target: names of the parts whose outputs the loss compares, if the table of
            :mod:`rdm_solo.observe.parts` does not find them. With ``online`` alone, the target is
            the part's input if it is a predictor, and its output otherwise. If the module has
            parts with which the loss may compare this output, name both; the same name twice
            compares a part's outputs with each other.
        backbone: name of the part whose outputs are the features, if the table does not find it.
        views: number of consecutive calls of the target with views of the same images. Measures
            of positives need it.
        tokens: ``"mean"`` averages outputs ``(N, T, k)`` over tokens; ``"rows"`` makes each token
            a row.
        normalize: whether to scale rows to unit length; pass False for outputs of a softmax.
        labelled: ``(train, val)`` images with labels, each a loader or a pair of tensors. A kNN
            classifier on the backbone's features measures ``val/knn_acc1``, also before training.
        held_out: a loader of images that are not trained on. The spectra of their features become
            the columns ``*/held_out``. On the first of these or of the labelled images, the patch
            tokens of a vision transformer are measured (``erank/patches``, ``drift/patches``).
        every_n_epochs: how often labelled and held-out images are measured.
        classes: number K of outputs of a softmax in the loss, to report a loss that is stuck at
            ln K. By default it is that of a student's last layer if this has more outputs than
            inputs, as in DINO.
        on_best: a function called on all processes with the epoch and its kNN accuracy, if this is
            the highest so far.
        stop: whether to raise :class:`Collapsed` at the first warning or note, except for a
            negative gap and for jumps of the loss.
        dump: whether to save the last measured step's outputs to ``outputs/`` in the folder when
            ``stop`` would stop.
        checks: whether to check the loop in the first steps.
        quiet: whether to log only warnings and notes, and no line for each epoch.
        name: the method's name in the report; by default the model's class.
        log: a function called on rank 0 with each epoch's scalars and number.
        resume: True to resume after the folder's last epoch, a number to resume after that epoch;
            False and 0 refuse a folder that holds a run.
            In an empty folder both start with epoch 1.
        leads: whether the target should have the higher effective rank; otherwise negative gaps
            are not reported. By default it is True if the module's class has the name of one of
            our methods whose target should have the higher rank, and the module has a predictor
            or, with :class:`WatchCallback`, is one of solo-learn's.
        bounds: when to warn. Rank and variance are not judged in the first 3 epochs unless
            ``Bounds(warmup=0)`` is passed.
        steps_per_epoch: number of steps over which the measured steps are spread evenly; by
            default that of the previous epoch.
        overwrite: whether a folder that holds a run is renamed to NAME.old-TIME and a new run
            starts; a watch that resumes renames nothing.
        epochs, seed, data: shown in the report.
        config: settings that tell runs apart in the report, such as the learning rate: a mapping
            of numbers, texts, lists and mappings, stored as ``watched.config``.
        limits: how much of an epoch is measured: ``max_rows``, ``max_dim``, ``sample`` and
            ``max_features_dim``, the fields of :class:`~rdm_solo.observe.recorder.Limits`.

    >>> import tempfile
    >>> import torch
    >>> model = nn.ModuleDict({"projector": nn.Linear(4, 3), "predictor": nn.Linear(3, 3)})
    >>> with tempfile.TemporaryDirectory() as folder, Watch(f"{folder}/mine", model) as watch:
    ...     for step in range(3):
    ...         p = model["predictor"](model["projector"](torch.randn(8, 4)))
    ...         watch.step(p.square().mean())
    ...     scalars = watch.end_epoch()
    >>> 1 <= scalars["erank/online"] <= 3
    True
    """

    def __init__(
        self,
        folder: str | Path,
        model: nn.Module | Mapping[str, nn.Module],
        *,
        online: str | None = None,
        target: str | None = None,
        backbone: str | None = None,
        views: int | None = None,
        tokens: str = "mean",
        normalize: bool = True,
        labelled: tuple[Any, Any] | None = None,
        held_out: Any = None,
        every_n_epochs: int = 1,
        classes: int | None = None,
        on_best: Callable[[int, float], object] | None = None,
        stop: bool = False,
        dump: bool = False,
        checks: bool = True,
        quiet: bool = False,
        name: str | None = None,
        log: Callable[[dict[str, float], int], object] | None = None,
        resume: bool | int = False,
        overwrite: bool = False,
        leads: bool | None = None,
        bounds: Bounds = BOUNDS,
        steps_per_epoch: int | None = None,
        epochs: int | None = None,
        seed: int = 0,
        data: str = "own data",
        config: Mapping[str, Any] | None = None,
        **limits: int,
    ) -> None:
        if not isinstance(model, (nn.Module, Mapping)):
            received = type(model).__name__
            raise UserError(f"Watch(folder, model) needs a module or a mapping, got {received}.")
        check_choice("tokens", tokens, ["mean", "rows"])
        counts = {
            "views": views,
            "classes": classes,
            "steps_per_epoch": steps_per_epoch,
            "every_n_epochs": every_n_epochs,
        }
        for option, count in counts.items():
            if count is not None:
                check_integer(option, count, 1)
        if not isinstance(bounds, Bounds):
            raise UserError(f"bounds must be Bounds(...), got {bounds!r}.")
        check_integer("seed", seed)
        for argument, limit in limits.items():
            check_choice("an argument of Watch", argument, LIMITS)
            check_integer(argument, limit, 0 if argument == "max_features_dim" else 1)

        self.module = nn.ModuleDict(model) if isinstance(model, Mapping) else model
        observer = self._observer(online, target)
        observer.backbone = parts.backbone(self.module, backbone)
        observer.tokens = tokens
        observer.normalize &= normalize
        self.recorder = Recorder(observer, Limits(**limits), views, options="", keep_latest=dump)
        self.classes = classes or parts.prototypes(self.module, observer.branches)

        if leads is None:
            leads = self._leads()
        if not leads:
            if bounds.gap_epochs not in (None, BOUNDS.gap_epochs):
                raise UserError(f"gap_epochs={bounds.gap_epochs} needs leads=True.")
            bounds = replace(bounds, gap_epochs=None)

        if name is None:
            is_container = isinstance(model, (Mapping, nn.ModuleDict))
            name = "own method" if is_container else parts.class_name(model)
        watched: dict[str, Any] = {"tokens": tokens, "views": views, "leads": leads}
        if observer.branches is not None:
            watched |= observer.branches._asdict()
        watched["config"] = plain_settings(config or {})
        run_config: dict[str, Any] = {
            "method": {"name": name},
            "filter": {"name": "none"},
            "dataset": {"name": data},
            "seed": seed,
            "scheduler": {"warmup_epochs": bounds.warmup},
            "watched": watched,
        }
        if epochs is not None:
            run_config["max_epochs"] = epochs
        self.folder = WatchFolder(Path(folder), run_config, resume, overwrite)
        self.epoch = self.folder.last_epoch + 1
        self.alarm = Alarm(
            bounds,
            self._advise,
            lambda name, value: f"bounds=Bounds({name}={value})",
            self.folder.measured_epochs(),
            self.folder.warnings,
        )
        self.log = log
        self.epochs = epochs
        self.every_n_epochs = every_n_epochs
        self.steps_per_epoch = steps_per_epoch
        self.on_best = on_best
        self.stop = stop
        self.quiet = quiet
        self.stop_reason: str | None = None  # the first collapse or mistake since this start
        self.findings: list[Finding] = []  # mistakes in the loop
        self.losses = LossRecord()
        self._steps = 0  # of this epoch
        self._total_steps = 0  # since this start
        self._steps_before = math.inf  # number of steps in the previous epoch
        importlib.import_module("torchmetrics")  # takes seconds, which are not the first epoch's
        show_log()
        self._log_parts(name, backbone)
        self._checks: LoopChecks | None = None
        if checks and observer.branches is not None:
            self._checks = LoopChecks(self.module, observer.branches, views, backbone)
        self._step_size = StepSize(observer.backbone or self.module) if checks else None
        self.images = FixedImages(labelled, held_out, self.folder.folder)
        # A number in a new folder: an earlier start trained without a watch.
        is_trained = resume is not True and resume > 0
        if not self.folder.rows and not is_trained:
            self._measure_untrained()
        self._begin_epoch()

    def _observer(self, online: str | None, target: str | None) -> Observer:
        if online is None and target is not None:
            raise UserError("target= needs online=: pass both, online= alone, or neither.")
        branches = parts.find(self.module)
        if online is not None:
            branches = parts.by_name(self.module, online, target)
        if branches is None:
            raise UserError(parts.not_found_message(self.module))
        return ModuleObserver(self.module, branches)

    def _advise(self, kind: str, epoch: int) -> str:
        branches = self.recorder.observer.branches
        predictor = ""
        if branches is not None and branches.predictor:
            predictor = "the online branch needs its predictor, "
        return RULE[kind].remedy or ADVICE.format(predictor=predictor)

    def _log_parts(self, name: str, backbone: str | None) -> None:
        """Log which parts are watched."""
        if rank():
            return
        backbone = backbone or parts.backbone_name(self.module)
        features = "no features (pass backbone='...')"
        if backbone is not None:
            features = f"features from backbone={backbone!r}"
        branches = self.recorder.observer.description()
        log.warning(f"note: watching {name}: {branches}, {features}")

    def _leads(self) -> bool:
        """Return whether the target should have the higher rank, judged by the module's class.

        It need not be higher with negatives, or in a JEPA, whose branches see different tokens.
        """
        method = METHODS.get(parts.class_name(self.module).lower())
        if method is None or not method.leads:
            return False
        observer = self.recorder.observer
        if observer.branches is not None:
            return observer.branches.predictor
        return not isinstance(observer, ReturnedOutputs)

    def _measure_untrained(self) -> None:
        """Add epoch 0, of the network before its first step."""
        self._started = time.monotonic()
        row = EpochRow(0, self._measure_images(0))
        if not row.scalars:
            return
        self.folder.rows.append({"epoch": 0, **row.scalars})
        self.alarm.epochs.append(row.measured())
        self._log_line(row, is_best=False)

    def _measure_images(self, epoch: int) -> dict[str, float]:
        """Return the scalars of the user's images."""
        backbone = self.recorder.observer.backbone
        return self.images.scalars(backbone, self.module, self.recorder.limits, epoch)

    def _begin_epoch(self) -> None:
        self._started = time.monotonic()
        self._steps = 0
        self.losses.begin_epoch()
        if self._step_size is not None:
            self._step_size.begin()
        self.recorder.begin_epoch()
        self.recorder.before_step(0, math.inf)

    @property
    def collapsed(self) -> list[str]:
        """Return the kinds of collapse found so far, so that a loop can stop.

        This includes kinds that are only notes in the log, but not a negative gap.
        """
        kinds = [warning["kind"] for warning in self.alarm.warnings]
        return [kind for kind in kinds if kind in RULE and kind != WRONG_WAY]

    def step(self, loss: Tensor | float | None = None, step_output: Any = None) -> None:
        """Record a training step. Call this after forward and backward, with the loss.

        :class:`WatchCallback` passes what ``training_step`` returned as ``step_output``.
        """
        self._refuse_if_closed()
        if loss is not None:
            self.losses.add(loss)
        self.recorder.after_step(step_output)
        self._steps += 1
        self._total_steps += 1
        findings = []
        if self._checks is not None:
            findings = broadcast_object(self._checks.after_step())
            if not self._checks.recording:  # all steps that are checked are over
                self._checks = None
        # The first steps of later epochs, because the rate may rise in a long warm-up.
        if self._checks is not None or self._steps <= 2:
            findings += self._check_step_size()
        self._report_findings(findings)
        self.recorder.before_step(self._steps, self.steps_per_epoch or self._steps_before)

    def _refuse_if_closed(self) -> None:
        if self.folder.closed:
            raise UserError(
                f"the watch on {self.folder.folder} is closed: create a new one with resume=True."
            )

    def _check_step_size(self) -> list[Finding]:
        if self._step_size is None:
            return []
        change = broadcast_object(self._step_size.change())
        if change <= LARGE:
            return []
        self._step_size = None
        text = (
            f"the encoder's weights changed by {change:.0%} of their norm in one step, where 1 % "
            "is common: lower the learning rate, or lengthen its warm-up."
        )
        return [Finding("learning rate", "encoder", text, is_certain=False)]

    def _report_findings(self, findings: list[Finding]) -> None:
        """Report mistakes in the loop; rank 0 decides for all processes."""
        self.findings += findings
        for finding in findings:
            text = f"step {self._total_steps}: {finding.text}"
            self._report(finding.check, text, "warning" if finding.is_certain else "note")
        if findings:
            self._react(findings[0].check, self.epoch)

    def _report(self, kind: str, text: str, level: str) -> None:
        """Log a warning or note that belongs to no rule of collapse, and keep it for the report."""
        self.alarm.warnings.append({"kind": kind, "epoch": self.epoch, "text": text})
        self.folder.warnings = self.alarm.warnings
        if rank() == 0:
            log.warning(f"{level}: {text}")

    def _react(self, reason: str, epoch: int) -> None:
        """Save the outputs and stop, as far as the user asked for it."""
        self.stop_reason = self.stop_reason or reason
        if self.recorder.latest is not None:  # with dump=True
            self.folder.write_outputs(epoch, self.recorder.latest)
        if self.stop:
            self.record_stop()
            self.folder.summarize(self.recorder.device)
            raise Collapsed(f"{reason} in epoch {epoch}, and Watch was created with stop=True")

    def record_stop(self) -> None:
        """Keep for the report why the loop stops."""
        self.folder.stopped = f"stop=True: {self.stop_reason}"

    def end_epoch(
        self, scalars: Mapping[str, float] | None = None, /, **keywords: float
    ) -> dict[str, float]:
        """Measure, write, warn and log at the end of an epoch, and return the epoch's scalars.

        Pass your own scalars as a mapping with the columns' names (``{"val/acc1": 91.0}``), or as
        keywords with ``_`` instead of ``/`` (``val_acc1=91.0``). Accuracies are in per cent. With
        several processes, the scalars of rank 0 are used.
        """
        self._refuse_if_closed()
        user_scalars = _user_scalars({**(scalars or {}), **keywords})
        user_scalars = broadcast_object(user_scalars)
        loss = user_scalars.get("train/loss", self._mean_loss())
        row = self.recorder.end_epoch(self.epoch, loss, self.classes)
        if loss is not None:
            row.scalars["train/loss"] = loss
        is_due = (self.epoch - 1) % self.every_n_epochs == 0 or self.epoch == self.epochs
        if is_due:
            row.scalars |= self._measure_images(self.epoch)
        row.scalars |= user_scalars
        # A step without targets, as before k-means of DeepCluster v2, is no mistake at first.
        should_measure = self.recorder.was_measured or self._steps == 0
        if rank() == 0 and self.recorder.recorded_steps == 0 and should_measure:
            remedy = "Call step() after each training step."
            if self._steps:
                remedy = "After replacing a part, create a new watch with resume=True."
            log.warning(f"warning: no step of epoch {self.epoch} was measured. {remedy}")
        self._report_losses(loss)
        is_best = self._is_best(row)
        new_kinds = self.alarm.update(row.measured())
        reasons = [kind for kind in new_kinds if kind != WRONG_WAY]
        if loss is not None and not math.isfinite(loss):
            reasons.append("NaN loss")
        self.folder.warnings = self.alarm.warnings
        self.folder.write(row)
        self.folder.summarize(self.recorder.device)
        self._log_line(row, is_best)
        self._steps_before = self._steps or self._steps_before
        self.epoch += 1
        self._begin_epoch()
        # Late, because the user's functions may fail.
        if is_best and self.on_best is not None:
            self.on_best(row.epoch, row.scalars[KNN])
        if self.log is not None and rank() == 0:
            self.log(row.scalars, row.epoch)
        if reasons:
            self._react(reasons[0], row.epoch)
        return row.scalars

    def _mean_loss(self) -> float | None:
        """Return the mean loss of all processes' steps, or None if no loss was passed."""
        self.losses.read()
        total_and_count = self.losses.total, self.losses.count
        totals, counts = zip(*gather_objects(total_and_count))
        if not any(counts):
            return None
        return float(sum(totals) / sum(counts))

    def _report_losses(self, loss: float | None) -> None:
        """Report a loss that is not finite, or the epoch's first jump as rank 0 saw it."""
        jumps = broadcast_object(self.losses.jumps)
        if loss is not None and not math.isfinite(loss):
            self._report(
                "NaN loss",
                f"the mean loss of epoch {self.epoch} is {loss}. {RULE[DESTROYED].remedy}",
                "warning",
            )
        elif jumps:
            first = jumps[0]
            others = f" and in {len(jumps) - 1} other steps" if len(jumps) > 1 else ""
            self._report(
                "loss jump",
                f"the loss jumped in step {first.step} of epoch {self.epoch}{others}: from "
                f"{first.median:.4g} (median of the steps before) to {first.loss:.4g}. Look at the "
                "images of that step, clip the gradient, or lower the learning rate.",
                "note",
            )

    def _is_best(self, row: EpochRow) -> bool:
        """Return whether the epoch has the highest kNN accuracy so far."""
        earlier = [epoch.knn for epoch in self.alarm.epochs]  # and of the untrained network
        best = max(filter(math.isfinite, earlier), default=-math.inf)
        return row.scalars.get(KNN, -math.inf) > best

    def _log_line(self, row: EpochRow, is_best: bool) -> None:
        if self.quiet or rank():
            return
        has_diverged = not math.isfinite(row.scalars.get("train/loss", 0.0))
        diverged = row.epoch if has_diverged else None
        outcome = health(self.alarm.epochs, self.alarm.bounds, diverged)
        verdict = outcome.answer.partition(":")[0]
        mistakes = [finding.check for finding in self.findings if finding.is_certain]
        if mistakes and not outcome.collapsed:
            verdict = f"mistake in the loop ({mistakes[0]})"
        seconds = time.monotonic() - self._started
        log.info(epoch_line(row.epoch, self.epochs, row.scalars, seconds, verdict, is_best))

    def close(self, error: BaseException | None = None) -> None:
        """Remove the hooks and release the folder, which the end of the program also releases.

        In the report, a run that was not closed, or was closed with an error, counts as unfinished
        unless it has all its epochs.
        """
        self.recorder.observer.detach()
        if self._checks is not None:
            self._checks.detach()
        if self._step_size is not None:
            self._step_size.end()
        if isinstance(error, Collapsed):
            error = None
        if error is None:
            self.folder.summarize(self.recorder.device, ended=True)
        self.folder.close(error)

    def __enter__(self) -> "Watch":
        return self

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        self.close(error)


class TerminalHandler(logging.Handler):
    """Print messages to stderr while the program has configured no logging of its own."""

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.getLogger().handlers:
            print(self.format(record), file=sys.stderr)


def show_log() -> None:
    """Make the lines of a watch visible in a plain script; Python shows only warnings."""
    if log.level == logging.NOTSET:
        log.setLevel(logging.INFO)
    if not any(isinstance(handler, TerminalHandler) for handler in log.handlers):
        log.addHandler(TerminalHandler())


def _user_scalars(scalars: Mapping[str, Any]) -> dict[str, float]:
    """Return the user's scalars with column names as keys.

    >>> _user_scalars({"val_knn_acc1": 91})
    {'val/knn_acc1': 91.0}
    """
    columns = {name.replace("/", "_", 1): name for name in USER_SCALARS}
    by_column = {}
    for name, value in scalars.items():
        column = columns.get(name, name)
        if column not in USER_SCALARS:
            allowed = ", ".join(USER_SCALARS)
            raise UserError(f"end_epoch() accepts {allowed}, not {name!r}{suggest(name, columns)}")
        if column != "train/loss":
            check_number(column, value, 0, 100)
            if 0 < value < 1 and rank() == 0:
                log.warning(f"warning: {column}={value:g}: accuracies are in per cent, up to 100")
        by_column[column] = float(value)
    return by_column
