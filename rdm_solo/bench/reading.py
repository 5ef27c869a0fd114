"""Images per second from a folder and from shards of it: ``python -m rdm_solo.bench reading``.

One process reads all images in shuffled order, first their bytes alone and then with decoding and
two crops of 224 px, once with the files in the system's memory (warm) and once after it was told to
forget them (cold). Names and places of files stay in its memory, which favours the folder.
"""

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from rdm_solo import data
from rdm_solo.bench.timing import ratio
from rdm_solo.bench.views import write_jpegs
from rdm_solo.data.decoding import Decoder
from rdm_solo.shards.writing import write_part

PICTURES, COPIES = 64, 32


def write_images(root: Path) -> tuple[data.Files, data.Files]:
    """A folder of JPEGs, and shards of 50 MB with the same images."""
    write_jpegs(root / "once", PICTURES)
    for path in sorted((root / "once").rglob("*.jpg")):
        folder = root / "folder" / path.parent.name
        folder.mkdir(parents=True, exist_ok=True)
        for copy in range(COPIES):
            shutil.copyfile(path, folder / f"{path.stem}-{copy}.jpg")
    (root / "shards").mkdir()
    source = data.folder(root / "folder", labels=True, workers=0)
    write_part(source.train, root / "shards", "train", True, 50 * 10**6)
    made = data.shards(root / "shards", workers=0)
    os.sync()  # what is not on the disk yet would not be forgotten
    return source.train, made.train


def forget(root: Path) -> None:
    """Have the system drop the contents of the files from its memory."""
    for path in root.rglob("*.*"):
        with open(path, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def bench_reading(runs: int) -> None:
    """Print images per second of both, warm and cold, and the ratio round by round."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        both = write_images(root)
        order = torch.randperm(len(both[0]), generator=data.generator("order")).tolist()
        views = data.Views([data.Pipeline(size=224)])
        print(f"{len(order)} images in {len(both[1].tars)} shards")
        print(f"{'images/s, one process':<32}{'folder':>10}{'shards':>10}{'ratio':>8}  min..max")
        for cold in (False, True):
            for what in ("bytes", "decoded and cropped"):
                todo = order if what == "bytes" else order[:256]
                seconds: list[list[float]] = [[], []]
                for round_ in range(runs + 1):
                    for times, files in zip(seconds, both):
                        run = _reading(files, todo, views if what != "bytes" else None)
                        if cold:
                            forget(root)
                        start = time.perf_counter()
                        run()
                        if round_:  # the first round warms up
                            times.append(time.perf_counter() - start)
                middle, low, high = ratio(*seconds)
                rates = "".join(f"{len(todo) / statistics.median(s):>10.0f}" for s in seconds)
                label = f"{'cold' if cold else 'warm'}, {what}"
                print(f"{label:<32}{rates}{middle:>8.2f}  {low:.2f}..{high:.2f}")


def _reading(files: data.Files, order: list[int], views: data.Views | None) -> Callable[[], None]:
    decoder = Decoder(files, views, seed=0) if views else None

    def run() -> None:
        if decoder is None:
            for number in order:
                files.content(number)
            return
        for low in range(0, len(order), 32):
            decoder[0, order[low : low + 32]]

    return run
