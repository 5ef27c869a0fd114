"""Show a filter before any training: its kind, both effective ranks, and a figure.

``run=FOLDER`` uses that run's spectrum.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from rdm_solo import filters, plots, runs
from rdm_solo.filters.functions import BoundFunction
from rdm_solo.filters.schedules import as_schedule
from rdm_solo.ground.errors import UserError
from rdm_solo.ground.values import check_choice, check_integer
from rdm_solo.methods.chosen_filter import parameters
from rdm_solo.plots import style
from rdm_solo.report.verdicts import judge_run, verdicts
from rdm_solo.runs import RunFolder, files
from rdm_solo.runs.files import FIGURES
from rdm_solo.theory.filter_effect import Preview, predict_effect

log = logging.getLogger("rdm_solo")

AFTER_SCHEDULE = 10**6  # an epoch in which every schedule has reached its end
SPECTRA = {"1/i": 1.0, "1/i^2": 2.0, "flat": 0.0}


def preview(cfg: DictConfig) -> None:
    """Describe the filter, and write its figure."""
    for name in ("k", "batch_size"):
        check_integer(name, cfg[name], 2)
    check_choice("spectrum", cfg.spectrum, SPECTRA)
    run = None if cfg.run is None else runs.load(Path(cfg.run))
    config, p = _filter(cfg, run)
    function = config.get("function")
    is_passed = "function" in (cfg.get("filter") or {})
    if not is_passed and function not in (None, *filters.names()):
        log.info(
            f"The filter is not drawn: {cfg.run} sets filter.function={function}, which is not "
            "part of this package. If you trust it, pass filter.function yourself."
        )
    elif function is not None or config.name == "identity":
        name, figure = _draw_filter(cfg, run, config, p)
        if cfg.out:
            folder = Path(cfg.out)
        elif run is not None:
            folder = files.inside(run.folder, FIGURES)
        else:
            folder = Path("preview")
        files.make_results_folder(folder)
        paths = style.save(figure, folder, name)
        log.info(f"{' and '.join(path.name for path in paths)} in {folder}")
    elif run is not None:
        log.info(without_filter(run))


def _filter(cfg: DictConfig, run: RunFolder | None) -> tuple[DictConfig, Any]:
    """Return the config of the filter to show, and its exponent or schedule.

    ``filter=NAME`` overrides the run's filter; ``filter.function`` overrides only its function.
    """
    passed = cfg.get("filter") or OmegaConf.create()
    if "name" in passed:
        if passed.get("function") is None and passed.name != "identity":
            raise UserError(
                f"filter={passed.name} has no function to draw: give run=FOLDER of a run with "
                "this filter, and leave filter= out."
            )
        return passed, cfg.p
    if run is None:
        raise UserError("give filter=..., run=RUN_FOLDER, or both; see --help.")
    if cfg.p is not None:
        raise UserError(f"p={cfg.p} needs a filter: add one, such as filter=target_pow.")
    config, p = run.config.filter.copy(), run.config.get("p")
    config.update(passed)
    if "function" in passed and p is not None and not filters.takes_p(str(passed.function)):
        p = None  # the run's exponent belongs to the run's function
    return config, p


def _draw_filter(
    cfg: DictConfig, run: RunFolder | None, config: DictConfig, p: Any
) -> tuple[str, Figure]:
    """Log what the filter does, and return the name of its figure and the figure."""
    start = choose(config, p, epoch=0)
    end = choose(config, p, epoch=AFTER_SCHEDULE)
    sigma, rows = singular_values(cfg, run)
    effect = start.on(sigma, rows)
    log.info(effect.line)
    name = start.name.replace(", ", "_")
    if "." in start.function:  # a user's own: its name does not tell the branch
        name = f"{start.branch}_{name}"
    name = f"filter_{name}"
    if end.p != start.p:
        log.info(f"at the end of the schedule: {end.on(sigma, rows).line}")
        name += f"_to_{end.p:g}"
    if config.get("momentum"):
        log.info("  note: drawn for one batch, without the running correlation")
    for warning in effect.warnings:
        log.info(f"  note: {warning}")
    return name, plots.draw_filter(effect, assumptions(cfg, run))


def without_filter(run: RunFolder) -> str:
    """Explain why a run has no filter to draw, and whether the report judges it as low-pass."""
    reason = run.description.no_filter or "its filter is the learned predictor"
    if run.description.symmetric:
        return f"{run.label}: {reason}."
    _, verdict, _ = verdicts([judge_run(run)])
    return (
        f"{run.label}: {reason}. {verdict.question} {verdict.answer} ({verdict.numbers[0]}; judged "
        "as in the report, as an online filter at the last measured epoch)."
    )


@dataclass(frozen=True)
class Filter:
    """A function of singular values, with its exponent in one epoch."""

    function: str  # a registered name after its branch, or an import path
    branch: str
    gain: BoundFunction
    p: float | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        parts = [self.function]
        parts += [f"{key}={value}" for key, value in self.parameters.items()]
        if self.p is not None:
            parts.append(f"p={self.p:g}")
        return ", ".join(parts)

    def on(self, sigma: Tensor, rows: int) -> Preview:
        """Return its effect on a batch with these singular values and this many rows."""
        return predict_effect(self.name, self.branch, self.gain, sigma, rows)


def choose(config: DictConfig, p: Any, epoch: int) -> Filter:
    """Return the filter of a config in one epoch.

    >>> config = OmegaConf.create({"name": "target_pow", "branch": "target", "function": "pow"})
    >>> choose(config, -0.5, epoch=0).name
    'target_pow, p=-0.5'
    """
    if config.get("function") is None:
        return Filter("identity", "online", filters.get("identity"))
    function = str(config.function)
    branch = check_choice("filter.branch", config.get("branch"), ["online", "target", "both"])
    if OmegaConf.is_config(p):
        p = OmegaConf.to_container(p)
    if p is not None:
        p = as_schedule(p, epochs=2)(epoch)
    name = function if "." in function else f"{branch}_{function}"
    values = parameters(config)
    gain = filters.get(function, p, **values)
    return Filter(name, branch, gain, p, values)


def singular_values(cfg: DictConfig, run: RunFolder | None) -> tuple[Tensor, int]:
    """Return singular values and rows n of a batch after a batch norm: the squares sum to n k."""
    if run is None:
        k = cfg.k
        batch = cfg.batch_size
        share = torch.arange(1, k + 1, dtype=torch.float64) ** -SPECTRA[cfg.spectrum]
    else:
        share = _first(run, "lam_projection").sort(descending=True).values
        k = len(share)
        batch = run.filter_batch or cfg.batch_size
        share = share[share > 1e-11 * share[0]]  # a filter sets smaller ones to zero
    share = share[:batch]  # a batch has at most as many directions as rows
    sigma: Tensor = (batch * k * share / share.sum()).sqrt()
    return sigma, batch


def _first(run: RunFolder, name: str) -> Tensor:
    if name not in run.spectra or not len(run.spectra[name]):
        raise UserError(f"{run.folder} has no measured spectra; leave run= out.")
    return torch.from_numpy(run.spectra[name][0]).double()


def assumptions(cfg: DictConfig, run: RunFolder | None) -> str:
    """Return the source of the spectrum and of the singular values."""
    rows = cfg.batch_size
    if run is None:
        source = f"Assumed: a {cfg.spectrum} spectrum of {cfg.k} dimensions"
    else:
        source = "The first spectrum that the run measured"
        rows = run.filter_batch or rows
    return f"{source}; sigma: singular values of {rows} rows after a batch norm."
