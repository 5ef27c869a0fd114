"""Folders of small image files, whole and broken."""

import numpy as np
import pytest
import torch
from PIL import Image

from rdm_solo import data
from rdm_solo.data import Pipeline, Views
from rdm_solo.ground import distributed

SIZE = 16


def picture(seed, height=None, width=None):
    """Return a smooth picture with some noise, by default of a random size."""
    draw = np.random.default_rng(seed)
    height = height or int(draw.integers(18, 50))
    width = width or int(draw.integers(18, 50))
    coarse = draw.integers(0, 256, (4, 4, 3), dtype=np.uint8)
    smooth = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
    noise = draw.integers(-20, 21, (height, width, 3))
    pixels = np.asarray(smooth) + noise
    pixels = pixels.clip(0, 255).astype(np.uint8)
    return Image.fromarray(pixels)


def write_tree(root, classes=("cat", "dog", "eel"), train=10, val=4):
    """Write ``train/CLASS/x.jpg`` and ``val/CLASS/x.jpg``; every third file is a PNG."""
    seed = 0
    for part, n in (("train", train), ("val", val)):
        for name in classes:
            folder = root / part / name
            folder.mkdir(parents=True)
            for i in range(n):
                extension = ("jpg", "jpg", "png")[i % 3]
                picture(seed).save(folder / f"{i:02}.{extension}")
                seed += 1
    return root


def a_pair(**options):
    """Return views of one pipeline, two per sample."""
    options = {"size": SIZE, "blur": 0.5, "solarize": 0.2} | options
    return Views([Pipeline(**options)])


def loader(root, part="train", batch_size=8, source=None, **options):
    """Return a loader of one part (train or val) of a folder, by default without workers."""
    decoding = {"image_size": SIZE, "workers": 0} | (source or {})
    dataset = data.folder(root, **decoding)
    if part == "train":
        options.setdefault("views", a_pair())
    return data.loader(dataset, part, batch_size, **options)


def spoil(path, how):
    """Make an image unreadable."""
    if how == "float":
        Image.fromarray(np.ones((20, 20), np.float32)).save(path, format="TIFF")
    elif how == "gone":
        path.unlink()
    elif how == "empty":
        path.write_bytes(b"")
    else:
        content = path.read_bytes()
        path.write_bytes(content[: len(content) * 9 // 10])


def epoch_of(loader, epoch=0, rank=0, world=1):
    """Return the batches of an epoch, as process number ``rank`` of ``world`` sees them."""
    loader.sampler.set_epoch(epoch)  # as Lightning does
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distributed, "rank", lambda: rank)
        patch.setattr(distributed, "world_size", lambda: world)
        batches = list(loader)
        assert len(batches) == len(loader)
    return batches


def assert_same(actual, expected):
    """Assert that nested lists of tensors are equal to the last bit."""
    torch.testing.assert_close(actual, expected, atol=0, rtol=0)
