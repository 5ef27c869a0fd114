"""A filter before any training: ``python -m rdm_solo.preview filter=target_pow p=-0.5``.

It says what kind of filter it is, draws it, and iterates Theorem 4 with it; with ``run=FOLDER``
from that run's spectrum, and beside what the run measured.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig

from rdm_solo import cli

if TYPE_CHECKING:
    from rdm_solo.runs.folder import Run

__all__ = ["preview"]

log = logging.getLogger("rdm_solo")


def preview(cfg: DictConfig) -> Path:
    """Say what the filter is, write pictures; their folder."""
    from rdm_solo import runs
    from rdm_solo.preview import without_filter

    _check(cfg)
    run = None if cfg.run is None else runs.load(Path(cfg.run))
    own = cfg.get("filter") is None
    if own and cfg.p is not None:
        raise ValueError(f"p={cfg.p} belongs to a filter: add filter=target_pow, say.")
    if own and run is None:
        raise ValueError("give filter=..., run=RUN_FOLDER, or both; --help says more.")
    chosen, p = (run.config.filter, run.config.get("p")) if own and run else (cfg.filter, cfg.p)
    function = chosen.get("function") is not None or chosen.name == "identity"
    if not own and not function:
        raise ValueError(f"filter={chosen.name} {_absent(chosen.name)}")
    folder = Path(cfg.out or (Path(cfg.run) / "figures" if run else "preview"))
    cli.make_folder(folder)

    written = []
    if function:
        written += _show_filter(cfg, run, chosen, p, folder)
    elif run is not None:
        log.info(without_filter.described(run))
    if run is not None and own:
        written += _show_prediction(run, folder)
    log.info(f"{', '.join(path.name for path in written)} in {folder}")
    return folder


def _show_filter(
    cfg: DictConfig, run: Run | None, chosen: DictConfig, p: Any, folder: Path
) -> list[Path]:
    """Judge and draw a filter that is a function."""
    from rdm_solo.plots import style
    from rdm_solo.plots.preview import draw_filter
    from rdm_solo.preview import inputs

    start, last = (inputs.choose(chosen, p, cfg.steps, epoch) for epoch in (0, cfg.steps - 1))
    sigma = inputs.singular_values(cfg, run)
    seen = start.on(sigma)
    log.info(seen.line)
    moves = last.p != start.p
    if moves:
        log.info(f"at the schedule's end {last.on(sigma).line}")
    for warning in seen.warnings:
        log.info(f"  note: {warning}")
    path = inputs.follow(cfg, run, seen, chosen, p)
    log.info(
        f"Theorem 4 from there ({cfg.steps} steps of {cfg.alpha:g}): erank/online "
        f"{path.online[0]:.3g} -> {path.online[-1]:.3g}, "
        f"erank/target {path.target[0]:.3g} -> {path.target[-1]:.3g}"
    )
    made = draw_filter(seen, path, inputs.assumed(cfg, run))
    return style.save(made, folder, f"filter_{start.stem}{f'_to_{last.p:g}' if moves else ''}")


def _show_prediction(run: Run, folder: Path) -> list[Path]:
    from rdm_solo.plots import style
    from rdm_solo.plots.preview import draw_prediction
    from rdm_solo.runs import prediction

    found = prediction.predict(run)
    log.info(found.note)
    return style.save(draw_prediction(found), folder, "prediction")


def _absent(name: str) -> str:
    """Why a choice has no function to draw."""
    if name == "none":
        return (
            "stands for methods without a place for a filter: SwAV's and DINO's target is their "
            "filter, symmetric methods have none; run=FOLDER of such a run says more."
        )
    return (
        "is learned, no function to draw: what it became is seen with run=FOLDER of a run that "
        "used it."
    )


def _check(cfg: DictConfig) -> None:
    from rdm_solo.preview.inputs import SPECTRA

    for name, least in (("k", 2), ("batch_size", 2), ("steps", 1)):
        value = cfg[name]
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}.")
    if not _is_number(cfg.alpha) or not 0 < cfg.alpha < 1:
        raise ValueError(f"alpha must be a number between 0 and 1, got {cfg.alpha!r}.")
    if not _is_number(cfg.omega) or not 0 <= cfg.omega <= 1:
        raise ValueError(f"omega must be a number from 0 to 1, got {cfg.omega!r}.")
    if cfg.spectrum not in SPECTRA:
        raise ValueError(f"spectrum must be one of {', '.join(SPECTRA)}, got {cfg.spectrum!r}.")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _job(cfg: DictConfig) -> None:
    with cli.sentences():
        preview(cfg)


def main() -> None:
    """The command."""
    cli.command(_job, "preview")
