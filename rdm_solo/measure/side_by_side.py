"""Measure encoders side by side, print a table, and write one page."""

import json
import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from omegaconf import DictConfig
from torch import nn

from rdm_solo import plots
from rdm_solo.evaluate.extraction import choose_device
from rdm_solo.ground.errors import UserError
from rdm_solo.ground.values import check_bool, check_integer
from rdm_solo.measure import scores as measures
from rdm_solo.measure.encoders import KINDS, affordable, load
from rdm_solo.measure.scores import Scores, add_remarks, score
from rdm_solo.plots import style
from rdm_solo.plots.eigenvalues import above_rounding
from rdm_solo.report import figures
from rdm_solo.report.page import render
from rdm_solo.runs import files
from rdm_solo.runs.files import write_atomically
from rdm_solo.runs.groups import aligned
from rdm_solo.train.training_data import make_data

log = logging.getLogger("rdm_solo")

# The table's heads, in its order.
HEADS = {
    measures.KNN: "kNN %",
    measures.LINEAR: "linear %",
    "erank/features_centred": "rank around the mean",
    "erank/features": "effective rank",
    "rankme/features": "RankMe",
    measures.LIDAR: "LiDAR",
    measures.ALPHA: "α-ReQ",
    measures.R2: "its R²",
    measures.PATCHES: "rank of patches",
}
PIXELS = 16  # largest side of raw pixels: the matrices of 32 px would be 3072 x 3072


def measure(cfg: DictConfig) -> list[Scores]:
    """Measure the encoders and their baselines, and write the table, page and figure."""
    check_bool("pretrained", cfg.pretrained)
    if cfg.images is not None:
        check_integer("images", cfg.images, 10)
    if not cfg.encoders:
        raise UserError(f"pass an encoder: {KINDS}; see --help.")
    device = choose_device(cfg.device)
    size = cfg.dataset.image_size
    encoders = [load(name, size, cfg.pretrained, cfg.seed) for name in cfg.encoders]
    dataset, views = make_data(cfg)
    channels = dataset.train.channels
    # All encoders try an image before the first one is measured.
    most = min(affordable(encoder, channels, size, device) for encoder in encoders)
    count = most if cfg.images is None else cfg.images
    out = Path(cfg.out)
    files.make_results_folder(out)

    images_for = partial(measures.choose, dataset, views, count, cfg.seed, device)
    side = min(size, PIXELS)
    pixels = nn.Sequential(nn.AdaptiveAvgPool2d(side), nn.Flatten())
    of_pixels = score(f"raw pixels, {side} px", pixels, images_for(None), cfg.seed)
    rows = []
    for encoder in encoders:
        images = images_for(encoder.channels)
        scores = score(encoder.name, encoder.module, images, cfg.seed)
        scores.remarks.extend(encoder.remarks(size))
        rows.append(scores)
        baselines = [of_pixels]
        if encoder.untrained is not None:
            name = f"{encoder.name}, untrained"
            untrained = score(name, encoder.untrained, images, cfg.seed)
            rows.append(untrained)
            baselines.append(untrained)
        add_remarks(scores, baselines, images)
    rows.append(of_pixels)
    write(rows, dataset.name, out)
    return rows


def write(rows: Sequence[Scores], dataset: str, out: Path) -> None:
    """Print the table and remarks; write ``measure.html``, ``measure.json`` and the figure."""
    cells = [texts(scores) for scores in rows]
    used = [head for head in cells[0] if any(row[head] != "–" for row in cells)]
    table = [{head: row[head] for head in used} for row in cells]
    for line in aligned([used, *(list(row.values()) for row in table)]):
        log.info(line)
    images = f"{rows[0].images} images of {dataset}"
    notes = [images + ". kNN: 20 neighbours. Linear: features scaled to one length."]
    if len({scores.dimensions for scores in rows}) > 1:
        notes.append(
            "Ranks, RankMe and LiDAR grow with the dimensions: compare encoders with equally many."
        )
    for scores in rows:
        for remark in scores.remarks:
            log.info(f"{scores.name}: {remark}")
    picture = figures.save(SPECTRA, spectra(rows), out)
    html = render(
        "measure.html", title=images, rows=rows, table=table, notes=notes, pictures=[picture]
    )
    write_atomically(out / "measure.html", html)
    records = json.dumps([vars(scores) for scores in rows], indent=2)
    write_atomically(out / "measure.json", records + "\n")
    log.info(f"{out / 'measure.html'} (with measure.json and the figure in the same folder)")


def texts(scores: Scores) -> dict[str, str]:
    """Return a row of the table, with a dash for what was not measured."""
    row = {"encoder": scores.name, "dimensions": str(scores.dimensions)}
    for column, head in HEADS.items():
        row[head] = "–"
        if column in scores.values:
            row[head] = f"{scores.values[column]:#.3g}".removesuffix(".")
    return row


@style.styled
def spectra(rows: Sequence[Scores]) -> Figure:
    """Draw the covariances' eigenvalues as shares of their sum; patches have their own panel."""
    panels = {"features": "spectrum"}
    if any(scores.patch_spectrum for scores in rows):
        panels["patches within images"] = "patch_spectrum"
    figure, grid = style.figure(len(panels), columns=1, panel=(5.4, 3.2))
    looks = style.looks(scores.name for scores in rows)
    for axes, (title, name) in zip(grid, panels.items()):
        for scores in rows:
            spectrum = getattr(scores, name)
            if spectrum:
                (lam,) = above_rounding(np.array([spectrum]))
                index = np.arange(1, len(lam) + 1)
                style.draw_line(axes, index, lam / np.nansum(lam), looks[scores.name])
        style.panel_title(axes, title)
        axes.set(xlabel="index", ylabel="share of the variance")
        style.log_axis(axes.xaxis)
        style.log_axis(axes.yaxis)
        style.mark_empty(axes, "all are equal")
    return style.finish(figure)


SPECTRA = plots.Plot(
    spectra,  # type: ignore[arg-type]  # of scores, not of runs
    title="Spectra",
    caption="Eigenvalues of the covariance, as shares of their sum. A steep line uses few "
    "directions. A straight line is a power law, and α-ReQ is its slope.",
    needs="features",
)
