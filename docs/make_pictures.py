"""Draw the pictures of README and docs: ``python docs/make_pictures.py RUNS``.

Sweeps that are missing below RUNS are trained first, in a quarter of an hour on one core. The
pictures of pages need Chromium, whose command ``--browser`` names.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import torch

from rdm_solo.data import textures

DOCS = Path(__file__).resolve().parent
DIGITS = ["dataset=digits", "trainer=cpu", "max_epochs=15", "scheduler.warmup_epochs=3"]
EXPONENTS = ["filter=target_pow", "p=-1,-0.7,-0.5,-0.3,0.5"]
SWEEPS = {
    "first": ["filter=identity,learnable,target_pow", "seed=0,1,2,3,4", "trainer=cpu"],
    "four": ["method=simsiam,byol,swav,dino", "seed=30,31,32,33,34", *DIGITS],
    "sweep": [*EXPONENTS, "seed=0,1,2", *DIGITS],
}
# The folders of each report, and its figures that the docs show.
REPORTS = {
    "first": (["first"], []),
    "filters": (["sweep"], ["sweep", "variants"]),
    "methods": (["four"], ["effective_rank", "alignment", "spectra"]),
    "designs": ([f"four/*_{name}_*seed=30" for name in ("simsiam", "swav", "dino")], ["figure5"]),
}


def rdm_solo(command: str, *options: str) -> None:
    subprocess.run([sys.executable, "-m", f"rdm_solo.{command}", *options], check=True)


def photograph(page: Path, picture: Path, browser: str, dark: bool) -> None:
    """Save the first screen of a page as a browser shows it."""
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    options += ["--window-size=1280,800", *(["--force-dark-mode"] if dark else [])]
    command = [browser, *options, f"--screenshot={picture}", page.resolve().as_uri()]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)


def draw_textures(picture: Path) -> None:
    """Draw six images of each of three classes, for both variants."""
    figure, axes = plt.subplots(2, 1, figsize=(8.5, 1.4), layout="constrained")
    for axis, variant in zip(axes, ("textures", "angles")):
        train = textures(variant, num_train=120, num_val=12).train
        strips = []
        for label in range(3):
            images = train.images[train.labels == label][:6, 0]
            images = torch.nn.functional.pad(images, (0, 1), value=255)
            strips.append(torch.nn.functional.pad(torch.cat(list(images), 1), (0, 4), value=255))
        axis.imshow(torch.cat(strips, 1), cmap="gray")
        axis.set_axis_off()
        axis.set_title(f"dataset.variant={variant}: three classes", loc="left", fontsize=8)
    figure.savefig(picture, dpi=100)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--browser", default="chromium")
    args = parser.parse_args()
    torch.set_num_threads(1)
    for name, options in SWEEPS.items():
        if not (args.runs / name).exists():
            folder = f"hydra.sweep.dir={args.runs / name}"
            rdm_solo("train", "-m", *options, folder)
    draw_textures(DOCS / "textures.png")
    with tempfile.TemporaryDirectory() as scratch:
        for name, (folders, figures) in REPORTS.items():
            out = Path(scratch) / name
            paths = [str(path) for pattern in folders for path in sorted(args.runs.glob(pattern))]
            rdm_solo("report", *paths, "--all-figures", "--out", str(out))
            for figure in figures:
                shutil.copy(out / f"{figure}.png", DOCS / "gallery")
            if name == "first":
                for scheme in ("light", "dark"):
                    picture = DOCS / "pictures" / f"report_{scheme}.png"
                    photograph(out / "report.html", picture, args.browser, scheme == "dark")


if __name__ == "__main__":
    main()
