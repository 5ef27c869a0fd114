"""Pixels of image files, against Pillow and torchvision."""

import dataclasses
import os

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_sample_images
from support.image_files import SIZE, loader, picture
from torchvision.datasets.folder import default_loader
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as tv

from rdm_solo import data
from rdm_solo.data import DecodeOptions, Pipeline, Views, decoding, folders
from rdm_solo.data.decoding import open_image


@pytest.mark.parametrize(
    ("kind", "mode"),
    [
        ("JPEG", "RGB"),
        ("JPEG", "L"),
        ("JPEG", "CMYK"),
        ("PNG", "RGBA"),
        ("PNG", "LA"),
        ("PNG", "P"),
        ("PNG", "1"),
        ("GIF", "RGB"),
        ("WEBP", "RGB"),
        ("TIFF", "RGB"),
        ("BMP", "RGB"),
        ("PPM", "RGB"),
    ],
)
def test_pixels_are_those_of_torchvisions_loader(tmp_path, kind, mode):
    """Save each kind under a JPEG's name, animations with two frames, JPEGs to be rotated."""
    path = tmp_path / "x.jpg"
    options = {}
    if kind == "GIF":
        options = {"save_all": True, "append_images": [picture(2)]}
    if kind == "JPEG":
        options["exif"] = Image.Exif()
        options["exif"][0x0112] = 6  # a camera held upright: to be turned by a quarter
    picture(1).convert(mode).save(path, kind, **options)
    actual = decoding.decode(open_image(path)).permute(1, 2, 0)
    assert np.array_equal(actual, np.array(default_loader(path)))


@pytest.mark.parametrize("name", ["x.png", "x.tiff"])
def test_sixteen_bits_are_scaled_not_clipped(tmp_path, name):
    values = np.random.default_rng(0).integers(0, 65536, (9, 7), dtype=np.uint16)
    Image.fromarray(values).save(tmp_path / name)
    actual = decoding.decode(open_image(tmp_path / name))
    expected = torch.from_numpy((values // 257).astype(np.uint8))
    assert torch.equal(actual, expected.expand(3, 9, 7))


def test_grey_is_one_channel(tree):
    options = {"channels": 1, "mean": (0.5,), "std": (0.25,)}
    grey = loader(tree, "val", source=options)
    x, _ = next(iter(grey))
    image = default_loader(grey.images.name(0)).convert("L")
    expected = tv.resize(tv.pil_to_tensor(image), [round(SIZE * 8 / 7)])
    expected = tv.center_crop(expected, [SIZE]) / 255
    torch.testing.assert_close(x[0], (expected - 0.5) / 0.25, atol=5 / 255, rtol=0)


@pytest.mark.parametrize(("height", "width"), [(50, 80), (80, 50), (9, 41), (1, 1)])
def test_clean_images_are_resized_and_cut_out_of_the_middle(height, width):
    image = picture(6, height, width)
    actual = decoding.evaluation_image(image, DecodeOptions(image_size=28, resize=32))
    expected = v2.CenterCrop(28)(v2.Resize(32)(image))
    difference = actual.int() - tv.pil_to_tensor(expected).int()
    assert difference.abs().max() <= 1


@pytest.mark.parametrize("kind", ["EPS", "PDF", "ICO", "PCX"])
def test_other_formats_are_refused_and_no_program_starts(tmp_path, monkeypatch, kind):
    ghostscript = tmp_path / "gs"
    ghostscript.write_text(f"#!/bin/sh\ntouch {tmp_path / 'started'}\n")
    ghostscript.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    picture(0, 32, 32).save(tmp_path / "x.jpg", kind)
    with pytest.raises(OSError, match="identify"):
        open_image(tmp_path / "x.jpg")
    assert not (tmp_path / "started").exists()


def full_quality(image, u, pipeline):
    """Return a view by Pillow's crop of all pixels, and by the other operations in memory."""
    (box,) = pipeline.boxes(u, image.height, image.width).tolist()
    size = [pipeline.size, pipeline.size]
    crop = tv.resized_crop(image, *box, size, v2.InterpolationMode.BICUBIC)
    x = tv.pil_to_tensor(crop)[None] / 255
    in_memory = dataclasses.replace(pipeline, crop_scale=(1, 1), crop_ratio=(1, 1))
    return in_memory(x, u)[0]


def test_views_of_photographs_are_those_of_full_quality(tmp_path):
    """The bound that benchmarks/cost.md states, over both photographs and 8 draws of each."""
    for i, pixels in enumerate(load_sample_images().images):
        folder = tmp_path / "train" / str(i)
        folder.mkdir(parents=True)
        Image.fromarray(pixels).save(folder / "x.jpg", quality=90)
    source = folders.folder(tmp_path, interpolation="bicubic", workers=0)
    mean = torch.tensor(source.mean).view(3, 1, 1)
    std = torch.tensor(source.std).view(3, 1, 1)
    pipeline = Pipeline(224, blur=0.5)
    batches = data.loader(source, "train", 2, views=Views([pipeline]), seed=3)
    for epoch in range(4):
        batches.set_epoch(epoch)
        ((samples, crops, _),) = batches
        for slot, sample in enumerate(samples.tolist()):
            image = default_loader(source.train.name(sample))
            uniforms = batches.views.uniforms([sample], 3, epoch)
            for view, u in zip(crops, uniforms, strict=True):
                difference = view[slot] * std + mean - full_quality(image, u, pipeline)
                assert difference.abs().mean() * 255 <= 1.5
