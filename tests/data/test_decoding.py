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


def pixels_of(path):
    """Return the bytes that torchvision's loader reads, (3, H, W)."""
    return torch.from_numpy(np.array(default_loader(path))).permute(2, 0, 1)


@pytest.mark.parametrize(("ending", "modes"), [("jpg", "L CMYK"), ("png", "RGBA LA P 1")])
def test_pixels_are_those_of_torchvisions_loader(tmp_path, ending, modes):
    path = tmp_path / f"x.{ending}"
    for mode in modes.split():
        picture(1).convert(mode).save(path)
        assert torch.equal(decoding.decode(open_image(path)), pixels_of(path))


def test_transparent_palettes_and_orientations_too(tmp_path):
    alpha = picture(2).convert("RGBA")
    alpha.putalpha(picture(3, alpha.height, alpha.width, "L"))
    alpha.quantize(16).save(tmp_path / "p.png", transparency=bytes(range(0, 160, 10)))
    exif = Image.Exif()
    exif[0x0112] = 6  # a camera held upright: to be turned by a quarter
    picture(4, 30, 20).save(tmp_path / "turned.jpg", exif=exif)
    for name in ("p.png", "turned.jpg"):
        got = decoding.decode(open_image(tmp_path / name))
        assert torch.equal(got, pixels_of(tmp_path / name))
    assert got.shape == (3, 30, 20)  # neither of them turns it


@pytest.mark.parametrize("name", ["x.png", "x.tiff"])
def test_sixteen_bits_are_scaled_not_clipped(tmp_path, name):
    values = np.random.default_rng(0).integers(0, 65536, (9, 7), dtype=np.uint16)
    Image.fromarray(values).save(tmp_path / name)
    got = decoding.decode(open_image(tmp_path / name))
    assert torch.equal(got, torch.from_numpy((values // 257).astype(np.uint8)).expand(3, 9, 7))


def test_grey_is_one_channel(tmp_path):
    tree = write_tree(tmp_path)
    grey = {"channels": 1, "mean": (0.5,), "std": (0.25,)}
    (x, _), *_ = loader(tree, "val", source=grey)
    want = tv.pil_to_tensor(default_loader(folders.folder(tree).val.name(0)).convert("L"))
    want = tv.center_crop(tv.resize(want, [round(SIZE * 8 / 7)], antialias=True), [SIZE])
    assert x.shape[1:] == (1, SIZE, SIZE)
    torch.testing.assert_close(x[0], (want / 255 - 0.5) / 0.25, atol=5 / 255, rtol=0)


@pytest.mark.parametrize("shape", [(50, 80), (80, 50), (9, 41), (1, 1)])
def test_clean_images_are_resized_and_cut_out_of_the_middle(shape):
    image = picture(6, *shape)
    got = decoding.evaluation_image(image, DecodeOptions(image_size=28, resize=32))
    want = v2.Compose([v2.Resize(32), v2.CenterCrop(28)])(image)
    difference = got.permute(1, 2, 0).int() - torch.from_numpy(np.array(want)).int()
    assert difference.abs().max() <= 1


def test_large_jpegs_are_decoded_in_full_by_default(tmp_path):
    """Fine texture, of which a reduced size would be 3 grey levels off on average."""
    path = tmp_path / "noise.jpg"
    noise = np.random.default_rng(0).integers(0, 256, (400, 400, 3), dtype=np.uint8)
    Image.fromarray(noise).save(path, quality=95)
    box = torch.tensor([[0, 0, 400, 400]])
    (view,) = decoding.cut_views(open_image(path), box, [40], DecodeOptions())
    with Image.open(path) as image:
        expected = v2.functional.resize(v2.functional.pil_to_tensor(image), [40], antialias=True)
    assert torch.equal(view, expected)


def test_large_jpegs_are_decoded_at_a_fraction_and_look_the_same(tmp_path):
    path = tmp_path / "large.jpg"
    picture(7, 1200, 1600).save(path, quality=95)
    boxes = torch.tensor([[0, 0, 1200, 1600], [100, 200, 900, 800], [301, 401, 500, 500]])
    for fraction, sizes in ((8, [32] * 2), (4, [56] * 2), (2, [112] * 3), (1, [224] * 3)):
        image = open_image(path)
        options = DecodeOptions(reduce_jpegs=True)
        got = decoding.cut_views(image, boxes[: len(sizes)], sizes, options)
        assert image.width == 1600 // fraction
        whole = decoding.decode(open_image(path))
        for crop, box, size in zip(got, boxes, sizes):
            want = decoding.resize_box(whole, box, (size, size), "bilinear")
            # Measured: at most 0.87 of 255 levels on average, in a picture with noise of 20.
            assert (crop.float() - want.float()).abs().mean() < 1.0


@pytest.mark.parametrize("decoder", ["torchvision", "pillow"])
def test_every_kind_of_jpeg_has_pillows_pixels(tmp_path, monkeypatch, decoder):
    def refuse(*_):
        raise RuntimeError("decode_jpeg: torchvision not compiled with libjpeg support")

    if decoder == "pillow":
        monkeypatch.setattr(decoding, "decode_jpeg", refuse)
    path = tmp_path / "x.jpg"
    for height, width in ((61, 47), (1, 1)):
        for subsampling in ("4:4:4", "4:2:2", "4:2:0"):
            for progressive in (False, True):
                options = {"subsampling": subsampling, "progressive": progressive}
                picture(8, height, width).save(path, quality=90, **options)
                got = decoding.decode(open_image(path)).permute(1, 2, 0)
                assert np.array_equal(got, np.array(Image.open(path)))


def test_the_content_decides_and_no_other_program_starts(tmp_path, monkeypatch):
    """PNG, GIF and WebP in a .jpg are read; PostScript, which Pillow gives to Ghostscript, not."""
    ghostscript = tmp_path / "gs"
    ghostscript.write_text(f"#!/bin/sh\ntouch {tmp_path / 'ran'}\n")
    ghostscript.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    path = tmp_path / "x.jpg"
    for kind in ("PNG", "GIF", "WEBP", "BMP", "PPM", "TIFF"):
        pages = {"save_all": True, "append_images": [picture(1, 20, 24)]}
        picture(0, 20, 24).save(path, kind, **({} if kind in ("BMP", "PPM") else pages))
        assert torch.equal(decoding.decode(open_image(path)), pixels_of(path))  # the first picture
    for kind in ("EPS", "PDF", "ICO", "PCX"):
        picture(0, 32, 32).save(path, kind)
        with pytest.raises(OSError, match="cannot identify"):
            open_image(path)
    assert not (tmp_path / "ran").exists()


def full_quality(image, u, pipeline):
    """Return a view by Pillow's crop of all pixels, and by the other operations in memory."""
    (box,) = pipeline.boxes(u, image.height, image.width).tolist()
    size, bicubic = [pipeline.size] * 2, v2.InterpolationMode.BICUBIC
    crop = tv.pil_to_tensor(tv.resized_crop(image, *box, size, bicubic))
    in_memory = dataclasses.replace(pipeline, crop_scale=(1, 1), crop_ratio=(1, 1))
    return in_memory(crop[None] / 255, u)[0]


def test_views_of_photographs_are_those_of_full_quality(tmp_path):
    """The bound that benchmarks/cost.md states, over both photographs and 8 draws of each."""
    for i, pixels in enumerate(load_sample_images().images):
        (tmp_path / "train" / str(i)).mkdir(parents=True)
        Image.fromarray(pixels).save(tmp_path / "train" / str(i) / "x.jpg", quality=90)
    pipeline = Pipeline(224, blur=0.5)
    source = folders.folder(tmp_path, interpolation="bicubic", workers=0)
    batches = data.loader(source, "train", 2, views=Views([pipeline]), seed=3)
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (source.mean, source.std))
    differences = []
    for epoch in range(4):
        batches.set_epoch(epoch)
        ((samples, crops, _),) = batches
        for slot, sample in enumerate(samples.tolist()):
            rows = batches.views.uniforms([sample], 3, epoch)
            for view, u in zip(crops, rows):
                want = full_quality(default_loader(source.train.name(sample)), u, pipeline)
                differences.append((view[slot] * std + mean - want).abs().mean().item() * 255)
    assert len(differences) == 16
    assert max(differences) <= 1.5
