"""Show a filter before any training: its kind, both effective ranks, and a figure.

``run=FOLDER`` uses that run's spectrum.
"""

import logging
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from rdm_solo import filters, plots, runs
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
    sigma, rows, source = spectrum(cfg, run)
    first = last = None
    if OmegaConf.is_config(p):
        p = OmegaConf.to_container(p)
    if p is not None:
        schedule = as_schedule(p, epochs=2)
        first, last = schedule(0), schedule(AFTER_SCHEDULE)
    effect = predict(config, first, sigma, rows)
    log.info(effect.line)
    name = f"filter_{effect.name.replace(', ', '_')}"
    if last != first:
        end = predict(config, last, sigma, rows)
        log.info(f"at the end of the schedule: {end.line}")
        name += f"_to_{last:g}"
    if config.get("momentum"):
        log.info("  note: drawn for one batch, without the running correlation")
    for warning in effect.warnings:
        log.info(f"  note: {warning}")
    note = f"{source}; sigma: singular values of {rows} rows after a batch norm."
    return name, plots.draw_filter(effect, note)


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


def predict(config: DictConfig, p: float | None, sigma: Tensor, rows: int) -> Preview:
    """Return the effect of a config's filter with this exponent on a batch's singular values.

    >>> config = OmegaConf.create({"name": "target_pow", "branch": "target", "function": "pow"})
    >>> predict(config, -0.5, torch.ones(4), rows=8).name
    'target_pow, p=-0.5'
    """
    function = config.get("function")
    if function is None:
        return predict_effect("identity", "online", filters.get("identity"), sigma, rows)
    branch = check_choice("filter.branch", config.get("branch"), ["online", "target", "both"])
    values = parameters(config)
    words = [f"{branch}_{function}"]
    words += [f"{key}={value}" for key, value in values.items()]
    if p is not None:
        words.append(f"p={p:g}")
    gain = filters.get(str(function), p, **values)
    return predict_effect(", ".join(words), branch, gain, sigma, rows)


def spectrum(cfg: DictConfig, run: RunFolder | None) -> tuple[Tensor, int, str]:
    """Return the singular values of a batch after a batch norm, its rows, and their source.

    The squares of all k singular values of n rows sum to n k.
    """
    batch = cfg.batch_size
    if run is None:
        k = cfg.k
        share = torch.arange(1, k + 1, dtype=torch.float64) ** -SPECTRA[cfg.spectrum]
        source = f"Assumed: a {cfg.spectrum} spectrum of {k} dimensions"
    else:
        if not len(run.spectra.get("lam_projection", ())):
            raise UserError(f"{run.folder} has no measured spectra; leave run= out.")
        lam = torch.from_numpy(run.spectra["lam_projection"][0]).double()
        share = lam.sort(descending=True).values
        k = len(share)
        batch = run.filter_batch or batch
        share = share[share > 1e-11 * share[0]]  # a filter sets smaller ones to zero
        source = "The first spectrum that the run measured"
    share = share[:batch]  # a batch has at most as many directions as rows
    sigma: Tensor = (batch * k * share / share.sum()).sqrt()
    return sigma, batch, source
