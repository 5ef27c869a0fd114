"""Show a filter before any training: its kind, both effective ranks, and a figure.

``run=FOLDER`` uses that run's spectrum.
"""

import logging
from dataclasses import replace
from pathlib import Path

import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from rdm_solo import filters, plots, runs
from rdm_solo.filters.schedules import as_schedule
from rdm_solo.ground.errors import UserError
from rdm_solo.ground.values import check_choice, check_integer
from rdm_solo.methods.chosen_filter import ChosenFilter
from rdm_solo.runs import RunFolder, files
from rdm_solo.runs.files import FIGURES
from rdm_solo.theory.filter_effect import Preview, predict_effect

log = logging.getLogger("rdm_solo")

SPECTRA = {"1/i": 1.0, "1/i^2": 2.0, "flat": 0.0}


def preview(cfg: DictConfig) -> None:
    """Describe the filter, and write its figure."""
    for name in ("k", "batch_size"):
        check_integer(name, cfg[name], 2)
    check_choice("spectrum", cfg.spectrum, SPECTRA)
    run = None if cfg.run is None else runs.load(Path(cfg.run))
    chosen = _choose(cfg, run)
    sigma, rows, source = spectrum(cfg, run)
    first, later = _exponents(chosen)
    effect = predict(chosen, first, sigma, rows)
    _log(effect)
    name = f"filter_{effect.name.replace(', ', '_')}"
    for time, p in later.items():
        _log(predict(chosen, p, sigma, rows), f"{time}: ")
        name += f"_to_{p:g}"
    if chosen.momentum:
        log.info("note: drawn for one batch, without the running correlation")
    note = f"{source}; sigma: singular values of {rows} rows after a batch norm."
    figure = plots.draw_filter(effect, note)
    folder = Path(cfg.out or "preview")
    if run is not None and not cfg.out:
        folder = files.inside(run.folder, FIGURES)
    files.make_results_folder(folder)
    plots.save(figure, folder, name)
    log.info(f"{name}.png and .pdf in {folder}")


def _log(effect: Preview, time: str = "") -> None:
    log.info(f"{time}{effect.line}")
    for warning in effect.warnings:
        log.info(f"  note: {warning}")


def _choose(cfg: DictConfig, run: RunFolder | None) -> ChosenFilter:
    """Return the filter to show.

    ``filter=NAME`` overrides the run's filter; ``filter.function`` overrides only its function.
    """
    passed = cfg.get("filter") or OmegaConf.create()
    function = passed.get("function")
    if "name" in passed:
        chosen = ChosenFilter.from_config(cfg)
    elif run is None:
        raise UserError("give filter=..., run=RUN_FOLDER, or both; see --help.")
    elif cfg.p is not None:
        raise UserError(f"p={cfg.p} needs a filter: add one, such as filter=target_pow.")
    else:
        config = run.config.copy()
        config.filter.update(passed)
        chosen = ChosenFilter.from_config(config)
        if function is not None and not filters.takes_p(function):
            chosen = replace(chosen, p=None)  # the run's exponent belongs to the run's function
    if function is None and chosen.function not in (None, *filters.names()):
        raise UserError(
            f"{cfg.run} sets filter.function={chosen.function}, which is not part of this package. "
            "If you trust it, pass filter.function yourself."
        )
    if not chosen.spectral and chosen.name != "identity":
        if run is not None and "name" not in passed:
            reason = run.description.no_filter or "its filter is learned"
            raise UserError(f"{run.folder} has no filter to draw: {reason}.")
        raise UserError(
            f"filter={chosen.name} is not a function of singular values, so it has no curve before "
            "training. The filter of a trained run is in its report."
        )
    return chosen


def _exponents(chosen: ChosenFilter) -> tuple[float | None, dict[str, float]]:
    """Return the exponent in the first epoch, and the later ones of its schedule by their time."""
    if chosen.p is None:
        return None, {}
    schedule = as_schedule(chosen.p, epochs=2)
    later = {}
    for epoch, p in schedule.exponents.items():
        if epoch == 1:
            continue
        time = "at the end of the schedule"
        if schedule.kind == "steps":
            time = f"from epoch {epoch}"
        later[time] = p
    return schedule(0), later


def predict(chosen: ChosenFilter, p: float | None, sigma: Tensor, rows: int) -> Preview:
    """Return the effect of a filter with this exponent on a batch's singular values.

    >>> chosen = ChosenFilter("target_pow", "target", "pow")
    >>> predict(chosen, -0.5, torch.ones(4), rows=8).name
    'target_pow, p=-0.5'
    """
    function = chosen.function
    if function is None:
        return predict_effect("identity", "online", filters.get("identity"), sigma, rows)
    branch = check_choice("filter.branch", chosen.branch, ["online", "target", "both"])
    words = [f"{branch}_{function}"]
    words += [f"{key}={value}" for key, value in chosen.parameters.items()]
    if p is not None:
        words.append(f"p={p:g}")
    gain = filters.get(function, p, **chosen.parameters)
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
        if not run.has_spectra():
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
