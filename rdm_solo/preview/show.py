"""A filter before any training: ``python -m rdm_solo.preview filter=target_pow p=-0.5``.

It says what kind of filter it is, draws it, and iterates Theorem 4 with it; with ``run=FOLDER``
from that run's spectrum, and beside what the run measured.
"""

import contextlib
import logging
from collections import defaultdict
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from rdm_solo import cli, filters, runs
from rdm_solo.messages import UserError, check_choice, check_number, check_whole
from rdm_solo.plots import style
from rdm_solo.plots.preview import draw_filter, draw_prediction
from rdm_solo.preview import inputs
from rdm_solo.report import verdicts
from rdm_solo.runs import known_parts, prediction, reading
from rdm_solo.runs.files import FIGURES

log = logging.getLogger("rdm_solo")


def preview(cfg: DictConfig) -> None:
    """Say what the filter is, and write pictures."""
    check_whole("k", cfg.k, 2)
    check_whole("batch_size", cfg.batch_size, 2)
    check_whole("steps", cfg.steps, 1)
    check_number("alpha", cfg.alpha, above=0, below=1)
    check_number("omega", cfg.omega, 0, 1)
    check_choice("spectrum", cfg.spectrum, inputs.SPECTRA)
    run = None if cfg.run is None else runs.load(Path(cfg.run))
    typed = cfg.get("filter") or OmegaConf.create()
    own = "name" not in typed  # filter.function=... alone replaces the run's function
    if own and cfg.p is not None:
        raise UserError(f"p={cfg.p} belongs to a filter: add filter=target_pow, say.")
    if own and run is None:
        raise UserError("give filter=..., run=RUN_FOLDER, or both; --help says more.")
    chosen, p, left_out = typed, cfg.p, False
    if run is not None and own:
        chosen, p = run.config.filter.copy(), run.config.get("p")
        chosen.update(typed)
        left_out = "function" not in typed and not known_parts.is_filter(chosen.get("function"))
    function = not left_out and (chosen.get("function") is not None or chosen.name == "identity")
    if not own and not function:
        raise UserError(f"filter={chosen.name} {_why_not(chosen.name)}")
    inner = reading.inside(run.folder, FIGURES) if run and not cfg.out else Path("preview")
    folder = Path(cfg.out or inner)
    if "function" in typed:
        if "branch" not in chosen:
            raise UserError(
                f"filter.function={typed.function} needs the branch that it filters, since run="
                f"{cfg.run} has no filter of that kind: add filter.branch=online or target."
            )
        if own and p is not None and not filters.takes_p(str(typed.function)):
            p = None  # the run's exponent belongs to the run's function
        inputs.choose(chosen, p, cfg.steps, 0)  # a fault in it is not the folder's
    cli.make_folder(folder)
    written = []
    with reading.named(run.folder) if run is not None else contextlib.nullcontext():
        if function:
            written += _show_filter(cfg, run, chosen, p, folder)
        elif left_out and run is not None:
            log.info(
                f"the filter is left out: {run.folder} names filter.function={chosen.function}, "
                "which is not in this package and is not run. If you trust it, type it again."
            )
        elif run is not None:
            log.info(without_filter(run))
        if run is not None and own:
            found = prediction.predict(run)
            log.info(found.note)
            written += style.save(draw_prediction(found), folder, "prediction")
    log.info(f"{', '.join(path.name for path in written)} in {folder}")


def _show_filter(
    cfg: DictConfig, run: runs.Run | None, chosen: DictConfig, p: Any, folder: Path
) -> list[Path]:
    """Judge and draw a filter that is a function."""
    start, last = (inputs.choose(chosen, p, cfg.steps, epoch) for epoch in (0, cfg.steps - 1))
    sigma = inputs.singular_values(cfg, run)
    seen = start.on(sigma)
    log.info(seen.line)
    name = f"filter_{start.stem}"
    if last.p != start.p:
        log.info(f"at the schedule's end {last.on(sigma).line}")
        name += f"_to_{last.p:g}"
    for warning in seen.warnings:
        log.info(f"  note: {warning}")
    path = inputs.follow(cfg, run, seen, chosen, p)
    log.info(
        f"Theorem 4 from there ({cfg.steps} steps of {cfg.alpha:g}): erank/online "
        f"{path.online[0]:.3g} -> {path.online[-1]:.3g}, "
        f"erank/target {path.target[0]:.3g} -> {path.target[-1]:.3g}"
    )
    return style.save(draw_filter(seen, path, inputs.assumed(cfg, run)), folder, name)


def _why_not(name: str) -> str:
    """Why a choice has no function to draw."""
    if name == "none":
        return (
            "has no function to draw: it is for methods that cannot take a filter. For the filter "
            "in SwAV's or DINO's target, give run=FOLDER of such a run."
        )
    return "is learned, so there is no function to draw: give run=FOLDER of a run that used it."


def without_filter(run: runs.Run) -> str:
    """What stands for a filter in that run, and whether it is low-pass by the report's rule."""
    if run.described.symmetric:
        return f"{run.label}: no filter of any kind, since both branches are one output."
    verdict = verdicts.low_pass([run])
    return (
        f"{run.label}: {_design(run)}. {verdict.question} {verdict.answer} ({verdict.numbers}; "
        "as an online filter at the last measured epoch, by the report's rule)."
    )


def _design(run: runs.Run) -> str:
    method: Any = OmegaConf.to_container(run.config.method)
    kwargs = defaultdict(lambda: "?", method.get("kwargs", {}))
    if run.described.asymmetry == "sinkhorn":
        return (
            "the target's Sinkhorn assignment is the implied filter ({sk_iters} iterations at "
            "ε = {sk_epsilon}; the online softmax has the temperature {temperature})"
        ).format_map(kwargs)
    if run.described.asymmetry != "centring":
        linear = "linear " if run.chosen_filter.linear else ""
        return f"the filter is what the {linear}predictor learned"
    centred = "centred" if method.get("centring", True) else "not centred"
    temperature = "temperature {teacher_temperature}"
    if kwargs["warmup_teacher_temperature_epochs"] not in (0, "?"):
        temperature = "temperature {warmup_teacher_temperature} and later {teacher_temperature}"
    if not method.get("sharpening", True):
        temperature = "not sharpened"
    return (
        f"the target's softmax is the implied filter ({centred}, {temperature}; the online branch "
        "has the temperature {student_temperature})"
    ).format_map(kwargs)
