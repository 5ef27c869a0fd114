"""Pixels of image files, against Pillow and torchvision."""

import dataclasses
import os

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_sample_images
from support.image_files import SIZE, loader, picture, write_tree
from torchvision.datasets.folder import default_loader
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as tv

from rdm_solo import data
from rdm_solo.data import DecodeOptions, Pipeline, Views, decoding, folders
from rdm_solo.data.decoding import open_image


def assert_decoded_as_torchvision(path):
    """Compare with the pixels that torchvision's loader reads."""
    actual = decoding.decode(open_image(path)).permute(1, 2, 0)
    assert np.array_equal(actual, np.array(default_loader(path)))


@pytest.mark.parametrize(
    ("extension", "mode"),
    [("jpg", "L"), ("jpg", "CMYK"), ("png", "RGBA"), ("png", "LA"), ("png", "P"), ("png", "1")],
)
def test_pixels_are_those_of_torchvisions_loader(tmp_path, extension, mode):
    path = tmp_path / f"x.{extension}"
    picture(1).convert(mode).save(path)
    assert_decoded_as_torchvision(path)


def test_alpha_of_a_palette_is_dropped_and_orientation_ignored(tmp_path):
    palette, turned = tmp_path / "palette.png", tmp_path / "turned.jpg"
    alpha = picture(2).convert("RGBA")
    alpha.putalpha(picture(3, alpha.height, alpha.width, "L"))
    alpha.quantize(16).save(palette, transparency=bytes(range(0, 160, 10)))
    exif = Image.Exif()
    exif[0x0112] = 6  # a camera held upright: to be turned by a quarter
    picture(4, 30, 20).save(turned, exif=exif)
    assert_decoded_as_torchvision(palette)
    assert_decoded_as_torchvision(turned)


@pytest.mark.parametrize("name", ["x.png", "x.tiff"])
def test_sixteen_bits_are_scaled_not_clipped(tmp_path, name):
    values = np.random.default_rng(0).integers(0, 65536, (9, 7), dtype=np.uint16)
    Image.fromarray(values).save(tmp_path / name)
    actual = decoding.decode(open_image(tmp_path / name))
    expected = torch.from_numpy((values // 257).astype(np.uint8))
    assert torch.equal(actual, expected.expand(3, 9, 7))


def test_grey_is_one_channel(tmp_path):
    tree = write_tree(tmp_path)
    grey = {"channels": 1, "mean": (0.5,), "std": (0.25,)}
    (x, _), *_ = loader(tree, "val", source=grey)
    image = default_loader(folders.folder(tree).val.name(0)).convert("L")
    expected = tv.resize(tv.pil_to_tensor(image), [round(SIZE * 8 / 7)], antialias=True)
    expected = tv.center_crop(expected, [SIZE]) / 255
    assert x.shape[1:] == (1, SIZE, SIZE)
    torch.testing.assert_close(x[0], (expected - 0.5) / 0.25, atol=5 / 255, rtol=0)


@pytest.mark.parametrize(("height", "width"), [(50, 80), (80, 50), (9, 41), (1, 1)])
def test_clean_images_are_resized_and_cut_out_of_the_middle(height, width):
    image = picture(6, height, width)
    actual = decoding.evaluation_image(image, DecodeOptions(image_size=28, resize=32))
    expected = v2.CenterCrop(28)(v2.Resize(32)(image))
    difference = actual.int() - tv.pil_to_tensor(expected).int()
    assert difference.abs().max() <= 1


def test_large_jpegs_are_decoded_in_full_by_default(tmp_path):
    """Compare fine texture, of which a reduced size would be 3 grey levels off on average."""
    path = tmp_path / "noise.jpg"
    noise = np.random.default_rng(0).integers(0, 256, (400, 400, 3), dtype=np.uint8)
    Image.fromarray(noise).save(path, quality=95)
    box = torch.tensor([[0, 0, 400, 400]])
    (view,) = decoding.cut_views(open_image(path), box, [40], DecodeOptions())
    image = tv.pil_to_tensor(default_loader(path))
    assert torch.equal(view, tv.resize(image, [40], antialias=True))


@pytest.mark.parametrize(
    ("fraction", "sizes"), [(8, [32, 32]), (4, [56, 56]), (2, [112] * 3), (1, [224] * 3)]
)
def test_large_jpegs_are_decoded_at_a_fraction_and_look_the_same(tmp_path, fraction, sizes):
    path = tmp_path / "large.jpg"
    picture(7, 1200, 1600).save(path, quality=95)
    boxes = torch.tensor([[0, 0, 1200, 1600], [100, 200, 900, 800], [301, 401, 500, 500]])
    image = open_image(path)
    options = DecodeOptions(reduce_jpegs=True)
    views = decoding.cut_views(image, boxes[: len(sizes)], sizes, options)
    assert image.width == 1600 // fraction
    full_size = decoding.decode(open_image(path))
    for view, box, size in zip(views, boxes, sizes):
        expected = decoding.resize_box(full_size, box, (size, size), "bilinear")
        # Measured: at most 0.87 of 255 levels on average, in a picture with noise of 20.
        assert (view.float() - expected.float()).abs().mean() < 1.0


@pytest.mark.parametrize("decoder", ["torchvision", "pillow"])
@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0"])
@pytest.mark.parametrize(("height", "width"), [(61, 47), (1, 1)])
def test_every_kind_of_jpeg_has_pillows_pixels(
    tmp_path, monkeypatch, decoder, progressive, subsampling, height, width
):
    def refuse(*_):
        raise RuntimeError("decode_jpeg: torchvision not compiled with libjpeg support")

    if decoder == "pillow":
        monkeypatch.setattr(decoding, "decode_jpeg", refuse)
    path = tmp_path / "x.jpg"
    image = picture(8, height, width)
    image.save(path, quality=90, subsampling=subsampling, progressive=progressive)
    assert_decoded_as_torchvision(path)


@pytest.fixture
def ghostscript(tmp_path, monkeypatch):
    """Install a Ghostscript that leaves a file; return the file's path."""
    program = tmp_path / "gs"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path / 'started'}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return tmp_path / "started"


@pytest.mark.parametrize("kind", ["PNG", "GIF", "WEBP", "TIFF", "BMP", "PPM"])
def test_the_content_decides_and_of_an_animation_the_first_frame(tmp_path, kind):
    path = tmp_path / "x.jpg"
    frames = {}
    if kind not in ("BMP", "PPM"):
        frames = {"save_all": True, "append_images": [picture(1, 20, 24)]}
    picture(0, 20, 24).save(path, kind, **frames)
    assert_decoded_as_torchvision(path)


@pytest.mark.parametrize("kind", ["EPS", "PDF", "ICO", "PCX"])
def test_other_formats_are_refused_and_no_program_starts(tmp_path, ghostscript, kind):
    picture(0, 32, 32).save(tmp_path / "x.jpg", kind)
    with pytest.raises(OSError, match="identify"):
        open_image(tmp_path / "x.jpg")
    assert not ghostscript.exists()


def full_quality(image, u, pipeline):
    """Return a view by Pillow's crop of all pixels, and by the other operations in memory."""
    (box,) = pipeline.boxes(u, image.height, image.width).tolist()
    size = [pipeline.size, pipeline.size]
    crop = tv.resized_crop(image, *box, size, v2.InterpolationMode.BICUBIC)
    in_memory = dataclasses.replace(pipeline, crop_scale=(1, 1), crop_ratio=(1, 1))
    return in_memory(tv.pil_to_tensor(crop)[None] / 255, u)[0]


def test_views_of_photographs_are_those_of_full_quality(tmp_path):
    """The bound that benchmarks/cost.md states, over both photographs and 8 draws of each."""
    for i, pixels in enumerate(load_sample_images().images):
        (tmp_path / "train" / str(i)).mkdir(parents=True)
        Image.fromarray(pixels).save(tmp_path / "train" / str(i) / "x.jpg", quality=90)
    pipeline = Pipeline(224, blur=0.5)
    source = folders.folder(tmp_path, interpolation="bicubic", workers=0)
    batches = data.loader(source, "train", 2, views=Views([pipeline]), seed=3)
    mean = torch.tensor(source.mean).view(3, 1, 1)
    std = torch.tensor(source.std).view(3, 1, 1)
    for epoch in range(4):
        batches.set_epoch(epoch)
        ((samples, crops, _),) = batches
        for slot, sample in enumerate(samples.tolist()):
            image = default_loader(source.train.name(sample))
            uniforms = batches.views.uniforms([sample], 3, epoch)
            for view, u in zip(crops, uniforms, strict=True):
                difference = view[slot] * std + mean - full_quality(image, u, pipeline)
                assert difference.abs().mean() * 255 <= 1.5
