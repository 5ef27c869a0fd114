"""A watch over a plain PyTorch loop: ``step`` after each step, ``end_epoch`` after each epoch."""

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from rdm_solo.callbacks import parts
from rdm_solo.callbacks.alarm import Alarm, just_measured
from rdm_solo.callbacks.branches import ByParts, Observer, Outputs
from rdm_solo.callbacks.epoch_spectra import EpochSpectra
from rdm_solo.callbacks.rows import TOKENS
from rdm_solo.devices import has_float64
from rdm_solo.distributed import first_says, gather_objects, rank
from rdm_solo.messages import UserError, check_choice, check_switch, check_whole, suggest
from rdm_solo.methods.descriptions import METHODS
from rdm_solo.runs.columns import ACCURACY, COLUMNS
from rdm_solo.spectra.collapse import COMPLETE, DESTROYED, RULE, WRONG_WAY, Bounds
from rdm_solo.spectra.epoch_summary import Spectra
from rdm_solo.watch.folder import WatchFolder
from rdm_solo.watch.outputs import outputs_of

log = logging.getLogger("rdm_solo")

# What the user measures; all other columns are the watch's own.
ACCURACIES = tuple(column.name for column in COLUMNS.values() if column.chart == ACCURACY)
OWN = tuple(name for name in COLUMNS if name in (*ACCURACIES, "train/loss"))
FRACTIONS = 3  # epochs with an accuracy of at most 1 per cent, which then are fractions

BOUNDS = Bounds()


class Watch:
    """Measures both branches' spectra over each epoch, warns of collapse, and writes a folder that
    ``python -m rdm_solo.report`` reads.

    Forward hooks record what the branches give in training; there is no further forward pass, and
    no random number is drawn. Under ``torch.distributed`` sums are over all processes, which make
    the same steps, of as many rows as each has, and the first one writes.

    Args:
        folder: the run's; no other run may use it.
        model: the module, wrapped or not, or several modules by name.
        online, target: names of the parts whose outputs the loss compares, where the table of
            :mod:`rdm_solo.callbacks.parts` does not find them; ``online`` alone is both branches
            or, if it is a predictor, its input is the target.
        views: how many calls of the target in a row are views of the same images. What is measured
            on positives needs it.
        tokens: what becomes of outputs ``(N, T, k)``: their ``"mean"``, or all of them as
            ``"rows"``.
        normalize: whether rows are scaled to unit length; False for outputs of a softmax.
        name: the method's in the report; the model's class by default.
        log: called with each epoch's scalars and its number, on the first process.
        resume: True to continue after the folder's last epoch, a number to continue after that
            epoch; in an empty folder either starts with epoch 1.
        leads: whether the target's effective rank should be the higher one; only then is a
            negative gap warned of. None: it should in modules with a predictor whose class is
            called like one of solo-learn's methods that is known for it (SimSiam, BYOL, NNSiam,
            NNBYOL), and in solo-learn's own SwAV, DINO and DeepCluster v2.
        bounds: when to warn. The first 3 epochs are not judged by rank and variance;
            ``Bounds(warmup=0)`` judges from the first one on. A ``gap_epochs`` of your own needs
            ``leads=True``.
        steps_per_epoch: lets the recorded steps of a long first epoch be evenly spaced; later ones
            are taken to be as long as the one before.
        epochs, seed, data: shown in the report; they change nothing.
        max_rows, max_dim, sample: how much of an epoch is measured, as of
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
    ) -> None:
        self.module = parts.as_module(model)
        self.observer = self._observer(online, target)
        check_choice("tokens", tokens, TOKENS)
        for option, value in (("views", views), ("steps_per_epoch", steps_per_epoch)):
            if value is not None:
                check_whole(option, value, 1)
        check_whole("max_rows", max_rows, 1)
        if not isinstance(resume, bool):
            check_whole("resume", resume, 0, alternative="True or False")
        known = self.observer.branches if isinstance(self.observer, ByParts) else None
        leads = self._leads() if leads is None else check_switch("leads", leads)
        if not leads:
            if bounds.gap_epochs not in (None, BOUNDS.gap_epochs):
                raise UserError(f"gap_epochs={bounds.gap_epochs} counts only with leads=True.")
            bounds = replace(bounds, gap_epochs=None)
        self.views, self.log, self.steps_per_epoch = views, log, steps_per_epoch
        self.observer.tokens, self.observer.most_rows = tokens, 4 * max_rows
        if not normalize:
            self.observer.normalize = False
        own = name or ("own method" if isinstance(model, Mapping) else parts.kind(model))
        config = {
            "method": {"name": own},
            "filter": {"name": "none"},
            "dataset": {"name": data},
            "seed": seed,
            "scheduler": {"warmup_epochs": bounds.warmup},
            "watched": {
                **{"tokens": tokens, "views": views, "leads": leads},
                **(known._asdict() if known else {}),
            },
        }
        if epochs is not None:
            config["max_epochs"] = check_whole("epochs", epochs, 1)
        self.folder = self._folder(Path(folder), config, resume)
        self.epoch = self.folder.done + 1  # the one that goes on
        self.alarm = Alarm(
            bounds,
            self._advice,
            lambda name, value: f"bounds=Bounds({name}={value})",
            self.folder.measured(),
            self.folder.warnings,
        )
        self.spectra = EpochSpectra(max_rows, max_dim, sample, options="")
        self._device = torch.device("cpu")
        self._measured = False  # whether any step was, yet
        self._missed = False  # whether an epoch without measured steps was warned of
        self._steps_before = math.inf  # in the epoch before
        self._loss: Any = 0.0  # the sum of this epoch's, of so many:
        self._losses = self._steps = 0
        self._fractions = dict.fromkeys(ACCURACIES, 0)  # epochs whose accuracy was at most 1
        self._begin_epoch()

    @property
    def collapsed(self) -> list[str]:
        """The kinds of collapse that were found so far, by which a loop may end itself.

        A negative gap is warned of, and is no collapse.
        """
        kinds = [warning["kind"] for warning in self.alarm.warnings]
        return [kind for kind in kinds if kind != WRONG_WAY]

    @property
    def has_loss(self) -> bool:
        """Whether a step of this epoch came with its loss."""
        return self._losses > 0

    def step(self, loss: Tensor | float | None = None) -> None:
        """Call it after each forward and backward, with the loss."""
        self._check_open()
        if loss is not None:
            loss = torch.as_tensor(loss).detach()
            wide = torch.double if has_float64(loss.device) else torch.float
            self._loss = self._loss + loss.to(wide).mean()  # stays on the device
            self._losses += 1
        if self.observer.due:
            self._add(self._outputs())
        self._steps += 1
        if self.spectra.wants(self._steps, self.steps_per_epoch or self._steps_before):
            self._record_next_step()

    def end_epoch(
        self, scalars: Mapping[str, float] | None = None, /, **more: float
    ) -> dict[str, float]:
        """The epoch is over: measure, write, warn, and log; the epoch's scalars are returned.

        The user's own come as a mapping with the columns' names (``{"val/acc1": 91.0}``), or as
        keywords with a ``_`` for the ``/`` (``val_acc1=91.0``). Accuracies are per cent; of several
        processes the first one's count.
        """
        self._check_open()
        own = first_says(_own_scalars({**(scalars or {}), **more}))
        spectra = self.spectra.end_epoch(self.epoch, self.observer)
        found = dict(spectra.scalars) if spectra is not None else {}
        losses = gather_objects((float(self._loss), self._losses))
        if count := sum(n for _, n in losses):
            found["train/loss"] = sum(loss for loss, _ in losses) / count
        found |= own
        self._warn_of_fractions(own)
        self._warn_of_nothing(spectra)
        self.alarm.read(just_measured(found, spectra, self.epoch))
        self.folder.warnings = self.alarm.warnings
        self.folder.write({"epoch": self.epoch, **found}, spectra)
        self.folder.summarize(self._device)
        if self._steps:
            self._steps_before = self._steps
        self.epoch += 1
        self._begin_epoch()
        if self.log is not None and rank() == 0:  # last: it is not ours, and may fail
            self.log(found, self.epoch - 1)
        return found

    def note_stop(self, why: str) -> None:
        """Say in the folder why the run ended before its last epoch."""
        self.folder.stopped = why
        self.folder.summarize(self._device)

    def close(self, error: BaseException | None = None) -> None:
        """Remove the hooks and release the folder; the end of the program does both, too.

        Only a run that was closed without an error has ended; the report calls any other with
        epochs to go still training or broken off.
        """
        self.observer.detach()
        if error is None:
            self.folder.summarize(self._device, ended=True)
        self.folder.close(error)

    def __enter__(self) -> "Watch":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(error)

    def _folder(self, folder: Path, config: Mapping[str, Any], resume: bool | int) -> WatchFolder:
        return WatchFolder(folder, config, resume or False)  # with 0, no run may be there

    def _observer(self, online: str | None, target: str | None) -> Observer:
        if online is None and target is not None:
            raise UserError("target= needs online=: give both, online= alone, or neither.")
        branches = parts.named(self.module, online, target) if online else parts.find(self.module)
        if branches is None:
            raise UserError(parts.not_found(self.module))
        return ByParts(self.module, branches)

    def _leads(self) -> bool:
        """Whether the module's class says that the target should lead: negatives and queues of
        neighbours keep outputs apart without it, and a JEPA's branches see different tokens."""
        described = METHODS.get(parts.kind(self.module).lower())
        if isinstance(self.observer, ByParts):
            known = self.observer.branches.predictor
        else:
            known = type(self.observer) is not Observer  # of what is returned nothing is known
        return known and described is not None and described.leads

    def _begin_epoch(self) -> None:
        self._loss = 0.0
        self._steps = self._losses = 0
        self.spectra.begin_epoch()
        self._record_next_step()

    def _record_next_step(self) -> None:
        if self.epoch > self.observer.first_epoch:
            self.observer.record_next_step()

    def _outputs(self) -> Outputs | None:
        """What was recorded of the step; None where it cannot be used."""
        assert isinstance(self.observer, ByParts)
        let_go = not self.observer.recording
        calls = self.observer.take_calls()
        outputs = outputs_of(calls, self.observer, self.views)
        if outputs is None and not let_go and not self._measured:
            names, silent = self.observer.branches, {"online", "target"} - calls.keys()
            raise UserError(
                f"nothing was recorded in this step of the {' and the '.join(sorted(silent))} "
                f"branch of {parts.kind(self.module)}. Hooks are on online={names.online!r} and "
                f"target={names.target!r}; calls count in training mode and outside backward. "
                "Name parts that are called in each step: online='...', target='...'. A model that "
                "torch.compile compiled has to be watched before its first call."
            )
        return outputs

    def _add(self, outputs: Outputs | None) -> None:
        if outputs is not None:
            self._measured, self._device = True, outputs.online.device
        self.spectra.add(outputs, self.observer)

    def _check_open(self) -> None:
        if self.folder.closed:
            raise UserError(
                f"the watch on {self.folder.folder} is closed: make another one, with resume=True."
            )

    def _warn_of_nothing(self, spectra: Spectra | None) -> None:
        if rank():
            return
        if not self._steps:
            log.warning(f"warning: step() was not called in epoch {self.epoch}")
        elif self._measured and spectra is None and not self._missed:
            self._missed = True  # said once
            log.warning(
                f"warning: no step of epoch {self.epoch} could be measured. If a part of the model "
                "was replaced, make another watch, with resume=True."
            )

    def _warn_of_fractions(self, own: Mapping[str, float]) -> None:
        """Say once that an accuracy is per cent: torchmetrics gives fractions."""
        for name in self._fractions.keys() & own.keys():
            if own[name] > 1:
                del self._fractions[name]  # it is per cent
            elif own[name] <= 1:  # and no NaN
                self._fractions[name] += 1
            if self._fractions.get(name) == FRACTIONS and rank() == 0:
                del self._fractions[name]  # said once
                log.warning(
                    f"warning: {name} was at most 1 in {FRACTIONS} epochs, and is read as per "
                    "cent: a fraction, as torchmetrics gives it, has to be multiplied by 100."
                )

    def _advice(self, kind: str, epoch: int) -> str:
        """Return what is true of any loop; `callbacks.advice` knows causes within our methods."""
        branches = self.observer.branches if isinstance(self.observer, ByParts) else None
        if kind == WRONG_WAY and (branches is None or not branches.predictor):
            return RULE[COMPLETE].remedy
        if kind == WRONG_WAY and branches and branches.target is not None:
            return f"The target network may also lag too far behind. {RULE[kind].remedy}"
        if kind in (WRONG_WAY, DESTROYED) or branches is None or branches.predictor:
            return RULE[kind].remedy
        if branches.target is not None:
            return RULE[kind].remedy
        alike = "Both branches are one output, so only the loss can keep images apart."
        return f"{alike} {RULE[kind].remedy}"


def _own_scalars(given: Mapping[str, Any]) -> dict[str, float]:
    """The user's scalars under their columns' names; ValueError names the nearest.

    >>> _own_scalars({"val_knn_acc1": 91})
    {'val/knn_acc1': 91.0}
    """
    spelled = {name.replace("/", "_", 1): name for name in OWN}
    found = {}
    for name, value in given.items():
        column = spelled.get(name, name)
        if column not in OWN:
            measured = column in COLUMNS or column in {n.replace("/", "_", 1) for n in COLUMNS}
            why = "is measured by the watch" if measured else "is no column"
            hint = suggest(name, OWN) or f"; own scalars are {', '.join(OWN)}."
            raise UserError(f"end_epoch(): {name!r} {why}{hint}")
        found[column] = float(value)
    return found
