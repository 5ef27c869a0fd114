"""Pixels of image files, against Pillow and torchvision."""

import os

import numpy as np
import pytest
import torch
from PIL import Image
from support.image_files import SIZE, a_pair, picture
from torchvision.datasets.folder import default_loader
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as tv

from rdm_solo.data import DecodeOptions, Files, decoding
from rdm_solo.data.decoding import open_image
from rdm_solo.data.file_loader import Decoder


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
    draw = np.random.default_rng(0)
    values = draw.integers(0, 65536, (9, 7), dtype=np.uint16)
    Image.fromarray(values).save(tmp_path / name)
    actual = decoding.decode(open_image(tmp_path / name))
    for channel in actual:
        assert np.array_equal(channel, values // 257)


def assert_one_level_apart(actual, image):
    """Compare with a PIL image, whose resampling rounds otherwise."""
    difference = actual.int() - tv.pil_to_tensor(image).int()
    assert difference.abs().max() <= 1


@pytest.mark.parametrize("channels", [3, 1])
@pytest.mark.parametrize(
    ("height", "width"),
    [
        (50, 80),
        (80, 50),
        (9, 41),
        (1, 1),
    ],
)
def test_clean_images_are_resized_and_cut_out_of_the_middle(height, width, channels):
    image = picture(6, height, width)
    options = DecodeOptions(image_size=28, resize=32, channels=channels)
    actual = decoding.evaluation_image(image, options)
    if channels == 1:
        image = image.convert("L")
    expected = v2.CenterCrop(28)(v2.Resize(32)(image))
    assert_one_level_apart(actual, expected)


def test_crops_are_pillows():
    image = picture(3, 40, 70)
    options = DecodeOptions(interpolation="bicubic")
    files = Files([image], torch.tensor([0]), options)
    views = a_pair()
    batch = Decoder(files, views, seed=0)[2, [0]]
    size = [SIZE, SIZE]
    (stack,) = batch.crops  # of the one pipeline
    for (crop,), u in zip(stack, batch.uniforms, strict=True):
        (box,) = views.pipelines[0].boxes(u, 40, 70).tolist()
        expected = tv.resized_crop(image, *box, size, v2.InterpolationMode.BICUBIC)
        assert_one_level_apart(crop, expected)


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
