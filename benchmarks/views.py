"""Compare views per second on one core with solo-learn's own pipeline.

Both make two views of each sample with the same probabilities and strengths: at 32 px from images
in memory with the paper's CIFAR augmentation, and at 224 px from JPEG files with its ImageNet-100
augmentation, decoding included. solo-learn's crops are bicubic. Ours are bicubic at 224 px and
bilinear in memory.
"""

import importlib
import itertools
import statistics
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from omegaconf import OmegaConf
from PIL import Image
from torch.utils.data import default_collate
from torchvision.datasets import ImageFolder

from benchmarks.timing import interleaved, parse, parser, ratio
from rdm_solo import data
from rdm_solo.data.file_loader import Decoder
from rdm_solo.methods import solo_learn


def augmentations() -> Any:
    """Return the module in which solo-learn creates views and data sets."""
    room = "data" if solo_learn.CURRENT else "utils"
    return importlib.import_module(f"solo.{room}.pretrain_dataloader")


def write_jpegs(root: Path, n: int, height: int = 375, width: int = 500) -> None:
    """Write ``n`` pictures with detail at every scale into two class folders."""
    for i in range(n):
        draw, x = data.generator("picture", i), torch.zeros(3, height, width)
        for cells in (4, 8, 16, 32, 64, 128, 256, 512):
            noise = torch.randn(1, 3, cells, cells, generator=draw) / cells**0.3
            x += F.interpolate(noise, (height, width), mode="bilinear", align_corners=False)[0]
        folder = root / f"class{i % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        pixels = (0.5 + 0.25 * x).clamp(0, 1).mul(255).byte().permute(1, 2, 0).numpy()
        Image.fromarray(pixels).save(folder / f"{i:05}.jpg", quality=90)


def solo_learns(dataset: str, pipeline: data.Pipeline) -> Callable[[Any], list[torch.Tensor]]:
    """Return solo-learn's augmentation with our settings; it makes two views of an image."""
    theirs = augmentations()
    names = ("brightness", "contrast", "saturation", "hue")
    jitter = {name: getattr(pipeline, name) for name in names}
    least, most = pipeline.crop_scale
    if solo_learn.CURRENT:
        settings = {
            "crop_size": pipeline.size,
            "rrc": {"enabled": True, "crop_min_scale": least, "crop_max_scale": most},
            "color_jitter": {"prob": pipeline.jitter, **jitter},
            "grayscale": {"prob": pipeline.grey},
            "gaussian_blur": {"prob": pipeline.blur},
            "solarization": {"prob": pipeline.solarize},
            "equalization": {"prob": 0.0},
            "horizontal_flip": {"prob": pipeline.flip},
        }
        one = theirs.build_transform_pipeline(dataset, OmegaConf.create(settings))
    else:
        one = theirs.prepare_transform(
            dataset,
            **jitter,
            crop_size=pipeline.size,
            min_scale=least,
            max_scale=most,
            color_jitter_prob=pipeline.jitter,
            gray_scale_prob=pipeline.grey,
            gaussian_prob=pipeline.blur,
            solarization_prob=pipeline.solarize,
            horizontal_flip_prob=pipeline.flip,
        )
    return theirs.prepare_n_crop_transform([one], [2])


def in_memory(pipeline: data.Pipeline, n: int, batch: int) -> list[Callable[[], int]]:
    """Return solo-learn's pipeline and ours on ``n`` images of CIFAR's shape."""
    source = data.synthetic(num_train=n, num_val=1, size=pipeline.size)
    images = source.train.images.permute(0, 2, 3, 1).contiguous().numpy()
    transform = solo_learns("cifar10", pipeline)

    def theirs() -> int:
        views = default_collate([transform(Image.fromarray(pixels)) for pixels in images])
        return _count([views])

    return [theirs, _epoch(source, pipeline, batch)]


def from_files(pipeline: data.Pipeline, root: Path, batch: int) -> list[Callable[[], int]]:
    """Return solo-learn's pipeline, ours, and the work of our loader's workers, for these JPEGs."""
    folder = augmentations().dataset_with_index(ImageFolder)
    samples = folder(root, solo_learns("imagenet100", pipeline))  # (index, views, label)
    source = data.folder(root, labels=True, interpolation="bicubic", workers=0)
    decoder = Decoder(source.train, data.Views([pipeline]), seed=0)
    numbers = range(len(samples))
    batches = [list(numbers[low : low + batch]) for low in numbers[::batch]]

    def theirs() -> int:
        return _count(default_collate([samples[i][1] for i in batch]) for batch in batches)

    def crops_alone() -> int:
        return _count(decoder[0, batch].crops[0] for batch in batches)  # of the one pipeline

    return [theirs, _epoch(source, pipeline, batch), crops_alone]


def _epoch(source: data.Dataset, pipeline: data.Pipeline, batch: int) -> Callable[[], int]:
    loader = data.loader(source, "train", batch, views=data.Views([pipeline]), drop_last=False)
    epochs = itertools.count()

    def run() -> int:
        loader.set_epoch(next(epochs))
        return _count(views for _, views, _ in loader)

    return run


def _count(batches: Iterable[Sequence[torch.Tensor]]) -> int:
    """Return the number of views in batches that have a stack for each view of a sample."""
    return sum(len(views) * len(views[0]) for views in batches)


def measure(runs: int, images: int = 64, batch: int = 32) -> None:
    """Print views per second of both, and the median, minimum and maximum of the ratio."""
    print(f"solo-learn {solo_learn.version()}; two views a sample, the same settings for both")
    print(f"{'views/s, one core':<32}{'solo-learn':>12}{'this':>10}{'ratio':>8}  min..max")
    with tempfile.TemporaryDirectory() as folder:
        write_jpegs(Path(folder), images)
        many = 16 * images
        small = in_memory(data.Pipeline(size=32), many, batch=256)
        large = from_files(data.Pipeline(size=224, blur=0.5), Path(folder), batch)
        theirs, ours = interleaved(small, runs, "cpu")
        print_row("32 px in memory", 2 * many, theirs, ours)
        theirs, ours, crops = interleaved(large, runs, "cpu")
        print_row("224 px from JPEG", 2 * images, theirs, ours)
        print_row("  a worker's part, beside a GPU", 2 * images, theirs, crops)


def print_row(label: str, count: int, theirs: list[float], ours: list[float]) -> None:
    """Print the rates of two contestants that make this number of views in each round."""
    their_rate = count / statistics.median(theirs)
    our_rate = count / statistics.median(ours)
    middle, low, high = ratio(theirs, ours)
    print(f"{label:<32}{their_rate:>12.0f}{our_rate:>10.0f}{middle:>8.2f}  {low:.2f}..{high:.2f}")


def main() -> None:
    measure(parse(parser("views", "views per second beside solo-learn's own pipeline")).runs)


if __name__ == "__main__":
    main()
