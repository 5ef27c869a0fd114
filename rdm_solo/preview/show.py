"""Shows a filter before any training: its kind, a figure, and Theorem 4 iterated with it.

``run=FOLDER`` uses that run's spectrum, and compares the prediction with what the run measured.
"""

import contextlib
import logging
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from rdm_solo import cli, filters, plots, runs
from rdm_solo.messages import UserError, check_choice, check_whole
from rdm_solo.plots import style
from rdm_solo.plots.theorem4 import draw_filter
from rdm_solo.preview import inputs
from rdm_solo.report import verdicts
from rdm_solo.runs import files, trust
from rdm_solo.runs.files import FIGURES

log = logging.getLogger("rdm_solo")


def preview(cfg: DictConfig) -> None:
    """Describe the filter, and write figures."""
    for name, least in (("k", 2), ("batch_size", 2), ("steps", 1)):
        check_whole(name, cfg[name], least)
    check_choice("spectrum", cfg.spectrum, inputs.SPECTRA)
    run = None if cfg.run is None else runs.load(Path(cfg.run))
    config, p = _filter(cfg, run)
    trusted = "function" in (cfg.get("filter") or {}) or trust.is_filter(config.get("function"))
    drawable = trusted and (config.get("function") is not None or config.name == "identity")
    if drawable and (run is None or "function" in (cfg.get("filter") or {})):
        inputs.choose(config, p, cfg.steps, 0)  # the user's mistakes, before a folder is made
    inner = files.inside(run.folder, FIGURES) if run and not cfg.out else Path("preview")
    folder = Path(cfg.out or inner)
    cli.make_folder(folder)
    pictures = []
    with files.named(run.folder) if run is not None else contextlib.nullcontext():
        if drawable:
            pictures += _show_filter(cfg, run, config, p, folder)
        elif not trusted:
            log.info(
                f"The filter is left out: {cfg.run} names filter.function={config.function}, "
                "which is not part of this package. If you trust it, pass the option again."
            )
        elif run is not None:
            log.info(without_filter(run))
        if run is not None and "name" not in (cfg.get("filter") or {}):
            figure = plots.prediction([run])
            log.info(figure.get_label())
            pictures += style.save(figure, folder, "prediction")
    log.info(f"{', '.join(path.name for path in pictures)} in {folder}")


def _filter(cfg: DictConfig, run: runs.Run | None) -> tuple[DictConfig, Any]:
    """Return the config of the filter to show, and its exponent or schedule.

    ``filter=NAME`` is that filter. Otherwise it is the run's, whose function ``filter.function``
    replaces.
    """
    passed = cfg.get("filter") or OmegaConf.create()
    if "name" in passed:
        if passed.get("function") is None and passed.name != "identity":
            raise UserError(
                f"filter={passed.name} has no function to draw: give run=FOLDER of a run that used "
                "it, without filter=."
            )
        return passed, cfg.p
    if run is None:
        raise UserError("give filter=..., run=RUN_FOLDER, or both; --help says more.")
    if cfg.p is not None:
        raise UserError(f"p={cfg.p} belongs to a filter: add filter=target_pow, say.")
    config, p = run.config.filter.copy(), run.config.get("p")
    config.update(passed)
    if "function" in passed and p is not None and not filters.takes_p(str(passed.function)):
        p = None  # the run's exponent belongs to the run's function
    return config, p


def _show_filter(
    cfg: DictConfig, run: runs.Run | None, config: DictConfig, p: Any, folder: Path
) -> list[Path]:
    """Describe and draw a filter that is a function."""
    start, end = (inputs.choose(config, p, cfg.steps, epoch) for epoch in (0, cfg.steps - 1))
    sigma = inputs.singular_values(cfg, run)
    effect = start.on(sigma)
    log.info(effect.line)
    name = f"filter_{start.stem}"
    if end.p != start.p:
        log.info(f"at the end of the schedule: {end.on(sigma).line}")
        name += f"_to_{end.p:g}"
    for warning in effect.warnings:
        log.info(f"  note: {warning}")
    path = inputs.follow(cfg.steps, run, effect, config, p)
    log.info(
        f"Theorem 4 from there ({cfg.steps} steps of {inputs.ALPHA:g}): erank/online "
        f"{path.online[0]:.3g} -> {path.online[-1]:.3g}, "
        f"erank/target {path.target[0]:.3g} -> {path.target[-1]:.3g}"
    )
    figure = draw_filter(effect, path, inputs.assumptions(cfg, run))
    return style.save(figure, folder, name)


def without_filter(run: runs.Run) -> str:
    """Say why a run has no filter to draw, and whether it is low-pass by the report's rule."""
    reason = run.described.no_filter or "its filter is what the predictor learned"
    if run.described.symmetric:
        return f"{run.label}: {reason}."
    verdict = verdicts.low_pass([run])
    return (
        f"{run.label}: {reason}. {verdict.question} {verdict.answer} ({verdict.numbers}; as an "
        "online filter at the last measured epoch, by the report's rule)."
    )
