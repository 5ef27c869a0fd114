"""Watch a PyTorch loop, which calls ``step`` after each step and ``end_epoch`` after each epoch."""

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rdm_solo.collapse.alarm import Alarm, measured_epoch
from rdm_solo.collapse.rules import RULE, WRONG_WAY, Bounds
from rdm_solo.ground.devices import has_float64
from rdm_solo.ground.distributed import broadcast_object, gather_objects, rank
from rdm_solo.ground.errors import UserError, suggest
from rdm_solo.ground.values import check_choice, check_integer
from rdm_solo.methods.descriptions import METHODS
from rdm_solo.observe import parts
from rdm_solo.observe.branches import Observer, Outputs
from rdm_solo.observe.epoch_spectra import EpochSpectra
from rdm_solo.observe.parts import Branches, ModuleObserver
from rdm_solo.runs.columns import ACCURACY, COLUMNS
from rdm_solo.watch.folder import WatchFolder
from rdm_solo.watch.outputs import outputs_of

log = logging.getLogger("rdm_solo")

# The columns that the user can pass to end_epoch; all others are measured.
USER_SCALARS = [c.name for c in COLUMNS.values() if c.chart == ACCURACY or c.name == "train/loss"]

BOUNDS = Bounds()

ADVICE = (
    "Check the loop first: the target must get no gradient (detach it), the online branch needs "
    "its predictor, a momentum must lie between 0 and 1, and the heads need batch norm. Then try a "
    "lower learning rate and a longer warm-up."
)


class Watch:
    """Measure both branches' spectra in each epoch, warn about collapse, and write a folder for
    ``rdm-solo report``.

    Forward hooks record the branches' outputs in training. There is no additional forward pass and
    no random number is drawn. Under ``torch.distributed``, all processes must make the same steps.
    Their moments are summed, and rank 0 writes.

    Args:
        folder: the run's folder; no other run may use it.
        model: the module, wrapped or not, or several modules by name.
        online, target: names of the parts whose outputs the loss compares, if the table of
            :mod:`rdm_solo.observe.parts` does not find them. With ``online`` alone, the target is
            the part's input if it is a predictor, and its output otherwise.
        backbone: name of the part whose outputs are the features, if the table does not find it.
        views: number of consecutive calls of the target with views of the same images. Measures
            of positives need it.
        tokens: ``"mean"`` averages outputs ``(N, T, k)`` over tokens; ``"rows"`` makes each token
            a row.
        normalize: whether to scale rows to unit length; pass False for outputs of a softmax.
        name: the method's name in the report; by default the model's class.
        log: a function called on rank 0 with each epoch's scalars and number.
        resume: True to resume after the folder's last epoch, a number to resume after that epoch.
            In an empty folder both start with epoch 1.
        leads: whether the target should have the higher effective rank; otherwise negative gaps
            are not reported. By default it is True for modules with a predictor whose class has
            the name SimSiam, BYOL, NNSiam or NNBYOL, and (only with :class:`WatchCallback`) for
            solo-learn's SwAV, DINO and DeepCluster v2.
        bounds: when to warn. Rank and variance are not judged in the first 3 epochs unless
            ``Bounds(warmup=0)`` is passed.
        steps_per_epoch: number of steps over which the measured steps are spread evenly; by
            default that of the previous epoch.
        epochs, seed, data: shown in the report.
        max_rows, max_dim, sample, max_features_dim: how much of an epoch is measured; see
            :class:`~rdm_solo.callbacks.Diagnostics`.

    >>> import tempfile
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
        name: str | None = None,
        log: Callable[[dict[str, float], int], object] | None = None,
        resume: bool | int = False,
        leads: bool | None = None,
        bounds: Bounds = BOUNDS,
        steps_per_epoch: int | None = None,
        epochs: int | None = None,
        seed: int = 0,
        data: str = "own data",
        max_rows: int = 10_000,
        max_dim: int = 4096,
        sample: int = 1024,
        max_features_dim: int = 2048,
    ) -> None:
        self.module = nn.ModuleDict(model) if isinstance(model, Mapping) else model
        self.observer = self._observer(online, target)
        self.observer.backbone = parts.backbone(self.module, backbone)
        check_choice("tokens", tokens, ["mean", "rows"])
        for option, value in (("views", views), ("steps_per_epoch", steps_per_epoch)):
            check_integer(option, 1 if value is None else value, 1)
        if not isinstance(resume, bool):
            check_integer("resume", resume, 0, alternative="True or False")
        leads = self._leads() if leads is None else leads
        if not leads:
            if bounds.gap_epochs not in (None, BOUNDS.gap_epochs):
                raise UserError(f"gap_epochs={bounds.gap_epochs} needs leads=True.")
            bounds = replace(bounds, gap_epochs=None)
        self.views, self.log, self.steps_per_epoch = views, log, steps_per_epoch
        self.observer.tokens = tokens
        self.observer.normalize &= normalize
        default_name = "own method" if isinstance(model, Mapping) else parts.class_name(model)
        watched = {"tokens": tokens, "views": views, "leads": leads}
        config = {
            "method": {"name": name or default_name},
            "filter": {"name": "none"},
            "dataset": {"name": data},
            "seed": seed,
            "scheduler": {"warmup_epochs": bounds.warmup},
            "watched": watched | (self._branches._asdict() if self._branches else {}),
            **({} if epochs is None else {"max_epochs": epochs}),
        }
        self.folder = WatchFolder(Path(folder), config, resume)
        self.epoch = self.folder.last_epoch + 1
        self.alarm = Alarm(
            bounds,
            lambda kind, epoch: RULE[kind].remedy or ADVICE,
            lambda name, value: f"bounds=Bounds({name}={value})",
            self.folder.measured_epochs(),
            self.folder.warnings,
        )
        self.spectra = EpochSpectra(max_rows, max_dim, sample, max_features_dim, options="")
        self._loss: Any = 0.0  # the sum of this epoch's losses
        self.loss_count = self._steps = 0
        self._device = torch.device("cpu")
        self._was_measured = False  # whether any step was measured
        self._steps_before = math.inf  # number of steps in the previous epoch
        self._begin_epoch()

    @property
    def collapsed(self) -> list[str]:
        """Return the kinds of collapse found so far, so that a loop can stop.

        This includes kinds that are only notes in the log, but not a negative gap.
        """
        kinds = [warning["kind"] for warning in self.alarm.warnings]
        return [kind for kind in kinds if kind != WRONG_WAY]

    def step(self, loss: Tensor | float | None = None) -> None:
        """Record a training step. Call this after forward and backward, with the loss."""
        if loss is not None:
            loss = torch.as_tensor(loss).detach()
            dtype = torch.double if has_float64(loss.device) else torch.float
            self._loss = self._loss + loss.to(dtype).mean()  # stays on the device
            self.loss_count += 1
        if self.observer.recording:
            outputs = self._outputs()
            if outputs is not None:
                self._was_measured, self._device = True, outputs.online.device
            self.spectra.add(outputs, self.observer)
        self._steps += 1
        if self.spectra.should_record(self._steps, self.steps_per_epoch or self._steps_before):
            self.observer.record_next_step()

    def end_epoch(
        self, scalars: Mapping[str, float] | None = None, /, **keywords: float
    ) -> dict[str, float]:
        """Measure, write, warn and log at the end of an epoch, and return the epoch's scalars.

        Pass your own scalars as a mapping with the columns' names (``{"val/acc1": 91.0}``), or as
        keywords with ``_`` instead of ``/`` (``val_acc1=91.0``). Accuracies are in per cent. With
        several processes, the scalars of rank 0 are used.
        """
        if self.folder.closed:
            raise UserError(
                f"the watch on {self.folder.folder} is closed: create a new one with resume=True."
            )
        passed = broadcast_object(_user_scalars({**(scalars or {}), **keywords}))
        spectra = self.spectra.end_epoch(self.epoch, self.observer)
        row = dict(spectra.scalars) if spectra is not None else {}
        losses = gather_objects((float(self._loss), self.loss_count))
        if count := sum(n for _, n in losses):
            row["train/loss"] = sum(loss for loss, _ in losses) / count
        row |= passed
        if rank() == 0 and spectra is None and (self._was_measured or not self._steps):
            log.warning(
                f"warning: no step of epoch {self.epoch} was measured. Call step() after each "
                "training step. After replacing a part, create a new watch with resume=True."
            )
        self.alarm.update(measured_epoch(row, spectra, self.epoch))
        self.folder.warnings = self.alarm.warnings
        self.folder.write({"epoch": self.epoch, **row}, spectra)
        self.folder.summarize(self._device)
        self._steps_before = self._steps or self._steps_before
        self.epoch += 1
        self._begin_epoch()
        if self.log is not None and rank() == 0:  # last, because the user's function may fail
            self.log(row, self.epoch - 1)
        return row

    def close(self, error: BaseException | None = None) -> None:
        """Remove the hooks and release the folder, which the end of the program also releases.

        In the report, a run that was not closed, or was closed with an error, counts as unfinished
        unless it has all its epochs.
        """
        self.observer.detach()
        if error is None:
            self.folder.summarize(self._device, ended=True)
        self.folder.close(error)

    def __enter__(self) -> "Watch":
        return self

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        self.close(error)

    @property
    def _branches(self) -> Branches | None:
        """Return the names of the watched parts, or None if outputs do not come from parts."""
        return self.observer.branches if isinstance(self.observer, ModuleObserver) else None

    def _observer(self, online: str | None, target: str | None) -> Observer:
        if online is None and target is not None:
            raise UserError("target= needs online=: pass both, online= alone, or neither.")
        branches = parts.by_name(self.module, online, target) if online else parts.find(self.module)
        if branches is None:
            raise UserError(parts.not_found_message(self.module))
        return ModuleObserver(self.module, branches)

    def _leads(self) -> bool:
        """Return whether the target should have the higher rank, judged by the module's class.

        It need not be higher with negatives, or in a JEPA, whose branches see different tokens.
        """
        method = METHODS.get(parts.class_name(self.module).lower())
        returns_outputs = type(self.observer) is Observer
        is_asymmetric = self._branches.predictor if self._branches else not returns_outputs
        return is_asymmetric and method is not None and method.leads

    def _begin_epoch(self) -> None:
        self._loss = 0.0
        self.loss_count = self._steps = 0
        self.spectra.begin_epoch()
        self.observer.record_next_step()

    def _outputs(self) -> Outputs | None:
        """Return the outputs recorded in the step, or None if they cannot be used."""
        assert isinstance(self.observer, ModuleObserver)
        calls = self.observer.pop_calls()
        outputs = outputs_of(calls, self.observer, self.views)
        if outputs is None and not self._was_measured:
            names, uncalled = self.observer.branches, {"online", "target"} - calls.keys()
            raise UserError(
                f"this step recorded no call of the {' and the '.join(sorted(uncalled))} branch "
                f"of {parts.class_name(self.module)}. Hooks are on online={names.online!r} and "
                f"target={names.target!r}; only calls in training mode and outside backward count. "
                "Pass parts that are called in each step: online='...', target='...'. With "
                "torch.compile, create the watch before the model's first call."
            )
        return outputs


def _user_scalars(scalars: Mapping[str, Any]) -> dict[str, float]:
    """Return the user's scalars with column names as keys.

    >>> _user_scalars({"val_knn_acc1": 91})
    {'val/knn_acc1': 91.0}
    """
    allowed = ", ".join(USER_SCALARS)
    columns = {name.replace("/", "_", 1): name for name in USER_SCALARS}
    for name in scalars:
        if name not in columns and name not in USER_SCALARS:
            raise UserError(f"end_epoch() accepts {allowed}, not {name!r}{suggest(name, columns)}")
    return {columns.get(name, name): float(value) for name, value in scalars.items()}
