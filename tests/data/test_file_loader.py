"""Batches of image files: the same ones however they are loaded; broken files are named."""

import logging
import multiprocessing
import os
import subprocess
import sys
import tempfile

import numpy as np
import pytest
import torch
from PIL import Image
from support.image_files import (
    SIZE,
    a_pair,
    by_sample,
    epoch_of,
    loader,
    same,
    spoil,
    truncate,
    write_tree,
)
from torchvision.datasets.folder import default_loader
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as tv

from rdm_solo import data
from rdm_solo.data import DataError, decoding, folders, image_files
from rdm_solo.data.loaders import LONGEST_TMPDIR


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    return write_tree(tmp_path_factory.mktemp("tree"))


def test_there_are_as_many_workers_as_cores(tree, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(3), raising=False)
    before = set(multiprocessing.active_children())
    batches = loader(tree, source={"workers": None})
    epoch_of(batches, 0)
    assert len(set(multiprocessing.active_children()) - before) == 3


def test_a_batch_is_what_its_draws_say(tree):
    views, mean, std = a_pair(), (0.1, 0.5, 0.7), (0.2, 0.3, 0.4)
    batches = loader(tree, views=views, source={"mean": mean, "std": std}, seed=3)
    files = batches.images
    shift, scale = (torch.tensor(v).view(3, 1, 1) for v in (mean, std))
    for indices, crops, labels in epoch_of(batches, 4):
        assert indices.dtype == labels.dtype == torch.int64
        assert torch.equal(labels, files.labels[indices])
        assert [crop.shape for crop in crops] == [(8, 3, SIZE, SIZE)] * 2
        for row, index in enumerate(indices.tolist()):
            image = default_loader(str(files.path(index)))
            for v, u in enumerate(views.uniforms([index], 3, 4)):
                top, left, height, width = (
                    views.each[v].boxes(u, image.height, image.width)[0].tolist()
                )
                cut = image.crop((left, top, left + width, top + height))
                cut = cut.resize((SIZE, SIZE), Image.Resampling.BILINEAR)
                cut = torch.from_numpy(np.array(cut)).permute(2, 0, 1)[None]
                want = (views.each[v].finish(cut, u)[0] - shift) / scale
                # A level of the crop is 1/255; jitter may double it, solarisation turn a value.
                apart = (crops[v][row] - want).abs() * scale
                assert apart.median() < 1e-3
                assert (apart > 3 / 255).float().mean() < 0.02


def test_workers_change_nothing(tree):
    want = [epoch_of(loader(tree), epoch) for epoch in (0, 1)]
    for workers in (1, 2):
        batches = loader(tree, source={"workers": workers})
        for epoch in (0, 1):  # the second with the first one's workers
            same(epoch_of(batches, epoch), want[epoch])
        same(epoch_of(batches, 0), want[0])
    val = list(loader(tree, "val"))
    for (x, y), (a, b) in zip(list(loader(tree, "val", source={"workers": 2})), val, strict=True):
        assert torch.equal(x, a)
        assert torch.equal(y, b)


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is Linux's")
def test_a_folder_for_temporary_files_that_no_worker_can_use_is_refused(tree):
    """A worker's socket could not have its name: the batches would never come."""
    code = (
        "import sys\n"
        "from rdm_solo.data import DataError, folder, loader\n"
        "try:\n"
        "    data = folder(sys.argv[1], image_size=16, workers=1)\n"
        "    print(len(list(loader(data, 'val', 4))))\n"
        "except DataError as error:\n"
        "    print(error)\n"
    )
    for length in (LONGEST_TMPDIR, LONGEST_TMPDIR + 1):
        with tempfile.TemporaryDirectory(dir="/tmp") as short:
            name = f"{short}/".ljust(length, "t")
            os.mkdir(name)
            out = subprocess.run(
                [sys.executable, "-c", code, str(tree)],
                env={**os.environ, "TMPDIR": name},
                capture_output=True,
                text=True,
                timeout=100,
            )
        assert out.stderr == ""
        if length == LONGEST_TMPDIR:
            assert int(out.stdout) > 0
        else:
            assert f"a name of {length} bytes" in out.stdout
            assert "at most 75: set TMPDIR" in out.stdout


def test_an_epoch_left_early_does_not_leak_into_the_next(tree):
    batches = loader(tree, source={"workers": 2}, batch_size=2)
    for epoch in (0, 1, 2):
        batches.set_epoch(epoch)
        for _ in zip(range(2), batches):
            pass
    same(epoch_of(batches, 3), epoch_of(loader(tree, batch_size=2), 3))


def test_neither_batch_size_nor_processes_change_a_samples_views(tree):
    want = by_sample(epoch_of(loader(tree, drop_last=False), 2))
    assert len(want) == 30
    for other in (
        epoch_of(loader(tree, batch_size=11, drop_last=False), 2),
        *(epoch_of(loader(tree, batch_size=5), 2, rank, world=3) for rank in range(3)),
    ):
        got = by_sample(other)
        assert got
        assert all(torch.equal(views, want[index]) for index, views in got.items())
    for other in (epoch_of(loader(tree, seed=1), 2), epoch_of(loader(tree), 3)):
        assert not any(torch.equal(v, want[index]) for index, v in by_sample(other).items())


@pytest.mark.parametrize("world", [2, 3])
def test_processes_together_see_what_one_sees(tree, world):
    one = epoch_of(loader(tree, batch_size=4 * world), 1)
    ranks = [epoch_of(loader(tree, batch_size=4), 1, rank, world) for rank in range(world)]
    together = [
        (torch.cat(i), [torch.cat(view) for view in zip(*crops)], torch.cat(labels))
        for i, crops, labels in (zip(*step) for step in zip(*ranks, strict=True))
    ]
    same(together, one)
    shares = [epoch_of(loader(tree, "val", 2), 0, rank, world) for rank in range(world)]
    assert sum(len(labels) for share in shares for _, labels in share) == 12


# A crop of a file is rounded to bytes before the rest of the view, one in memory is not. Measured
# over three seeds: half of the values are at most 4.8e-4 apart and 99% at most 3.8e-3, or 1.8e-7
# where the crop is the whole image; half of the values of other draws are 0.13 apart or more.
# Without solarisation, which may turn a value over.
@pytest.mark.parametrize(
    ("options", "median", "most"),
    [
        ({"crop_scale": (1, 1), "crop_ratio": (1, 1), "size": 24}, 1e-6, 1e-6),
        ({"rotate": 0.2}, 1e-3, 8e-3),
    ],
)
def test_lossless_files_get_the_views_of_the_same_images_in_memory(tmp_path, options, median, most):
    black = {"mean": (0.0,) * 3, "std": (1.0,) * 3}
    part = data.synthetic(num_train=30, num_val=1, size=24).train
    dataset = data.Dataset("in memory", part, None, 10, **black)
    for i, pixels in enumerate(part.images):
        Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(tmp_path / f"{i:02}.png")
    views = a_pair(solarize=0.0, **options)

    def in_memory(epoch, seed=3, batch_size=8, **loading):
        batches = data.loader(dataset, "train", batch_size, views=views, seed=seed, **loading)
        return epoch_of(batches, epoch)

    def in_files(epoch, seed=3, workers=0, process=(), **loading):
        source = black | {"workers": workers}
        batches = loader(tmp_path, views=views, seed=seed, source=source, **loading)
        return epoch_of(batches, epoch, *process)

    def apart(ours, theirs):
        assert ours.keys() <= theirs.keys()
        gaps = torch.cat([(crops - theirs[i]).abs().flatten() for i, crops in ours.items()])
        return gaps.median(), gaps.quantile(0.99)

    for ours, theirs in zip(in_files(5), in_memory(5), strict=True):
        assert torch.equal(ours[0], theirs[0])
    want = by_sample(in_memory(5, drop_last=False))
    assert len(want) == 30
    for loading in (
        {"drop_last": False},
        {"batch_size": 11},
        {"workers": 1},
        *({"batch_size": 5, "process": (rank, 3)} for rank in range(3)),
    ):
        middle, far = apart(by_sample(in_files(5, **loading)), want)
        assert middle < median
        assert far < most
    for other in (in_files(4), in_files(5, seed=2)):
        assert apart(by_sample(other), want)[0] > 0.05


def test_validation_is_every_image_once_in_order(tree):
    batches = loader(tree, "val", batch_size=5)
    x, labels = (torch.cat(parts) for parts in zip(*batches))
    assert labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    files = batches.images
    for i in range(12):
        image = default_loader(str(files.path(i)))
        want = v2.Compose([v2.Resize(round(SIZE * 8 / 7)), v2.CenterCrop(SIZE), v2.ToImage()])(
            image
        )
        mean, std = folders.IMAGENET
        want = tv.normalize(want.float() / 255, mean, std)
        torch.testing.assert_close(x[i], want, atol=1.01 / 255 / min(std), rtol=0)


def test_loading_leaves_the_runs_random_numbers_alone(tree):
    states = []
    for workers in (0, 2):
        torch.manual_seed(0)
        epoch_of(loader(tree, source={"workers": workers}))
        states.append(torch.get_rng_state())
    assert torch.equal(*states)
    torch.manual_seed(0)
    assert torch.equal(torch.get_rng_state(), states[0])


SPOILT = {
    "truncated": "cannot be decoded .*truncated",
    "empty": "is empty",
    "no image": "is no image",
    "garbage": "(cannot be|is no image)",
    "float": "cannot be decoded .*floating-point",
    "gone": "cannot be read .No such file",
}


@pytest.mark.parametrize("how", SPOILT)
@pytest.mark.parametrize("name", ["01.jpg", "02.png"])
def test_an_unreadable_image_is_named(tmp_path, how, name):
    write_tree(tmp_path, train=4, val=4)
    wanted = loader(tmp_path), loader(tmp_path, "val")
    for part, batches in zip(("train", "val"), wanted):
        path = tmp_path / part / "dog" / name
        spoil(path, how)
        with pytest.raises(
            DataError, match=f"^{path} {SPOILT[how]}.*dataset.skip_broken=true"
        ) as caught:
            list(batches)
        assert "\n" not in str(caught.value)


def test_a_worker_names_it_too(tmp_path):
    write_tree(tmp_path, train=4, val=1)
    truncate(tmp_path / "train" / "dog" / "01.jpg")
    with pytest.raises(DataError, match=r"^/.*/dog/01\.jpg cannot be decoded .*truncated"):
        list(loader(tmp_path, batch_size=12, source={"workers": 2}))


def test_skipped_images_are_replaced_counted_and_named(tmp_path, caplog):
    write_tree(tmp_path, train=8, val=4)
    before = epoch_of(loader(tmp_path, drop_last=False))
    order, intact = torch.cat([indices for indices, *_ in before]).tolist(), by_sample(before)
    spoil(tmp_path / "train" / "cat" / "07.jpg", "truncated")  # number 7; its neighbour is a dog
    spoil(tmp_path / "train" / "eel" / "06.jpg", "no image")  # numbers 22 and 23, at the very end
    spoil(tmp_path / "train" / "eel" / "07.jpg", "empty")
    spoil(tmp_path / "val" / "dog" / "01.jpg", "truncated")
    source = {"skip_broken": True}
    batches = loader(tmp_path, source=source, drop_last=False)
    with caplog.at_level(logging.WARNING, "rdm_solo"):
        got = epoch_of(batches)
        batches.report_skipped()
    indices, labels = (torch.cat([batch[k] for batch in got]) for k in (0, 2))
    instead = {7: 8, 22: 0, 23: 0}
    assert indices.tolist() == [instead.get(wanted, wanted) for wanted in order]
    assert torch.equal(labels, batches.images.labels[indices])
    crops = torch.cat([torch.stack(batch[1], 1) for batch in got])
    for slot, wanted in enumerate(order):
        assert torch.equal(crops[slot], intact[indices[slot].item()]) == (wanted not in instead)
    for wanted, index in ((7, 8), (22, 0)):  # the neighbour's picture, the missing one's draws
        image = image_files.open_image(batches.images.path(index))
        rows = batches.views.uniforms([wanted], 0, 0)
        pipeline = batches.views.each[0]
        boxes = torch.cat([pipeline.boxes(u, image.height, image.width) for u in rows])
        cut = decoding.cut_views(image, boxes, [SIZE] * 2, batches.images.reading)
        for v, u in enumerate(rows):
            want = tv.normalize(pipeline.finish(cut[v][None], u), *folders.IMAGENET)
            got_view = crops[order.index(wanted), v]
            torch.testing.assert_close(got_view, want[0], atol=1e-5, rtol=0)
    (line,) = caplog.messages
    assert "3 unreadable images were skipped: " in line
    assert all(name in line for name in ("cat/07.jpg", "eel/06.jpg", "eel/07.jpg"))
    same(epoch_of(batches), got)
    batches.report_skipped()
    assert len(caplog.messages) == 1  # once is enough
    for other in (
        {"source": source | {"workers": 2}, "batch_size": 8},
        {"source": source, "batch_size": 5},
    ):
        others = loader(tmp_path, drop_last=False, **other)
        again = epoch_of(others)
        assert others.skipped == batches.skipped
        views = torch.cat([torch.stack(batch[1], 1) for batch in again])
        assert torch.equal(views, crops)

    caplog.clear()
    plain = loader(tmp_path, "val", batch_size=1, source=source)
    _, labels = (torch.cat(parts) for parts in zip(*plain))
    assert labels.tolist() == [0] * 4 + [1] * 3 + [2] * 4
    plain.report_skipped()
    assert "1 unreadable image was skipped: " in caplog.text
    assert "val/dog/01.jpg" in caplog.text


def test_too_many_broken_images_are_refused_even_so(tmp_path):
    write_tree(tmp_path, train=3, val=1)
    for path in (tmp_path / "train").rglob("*.*"):
        spoil(path, "empty")
    source = {"skip_broken": True}
    with pytest.raises(DataError, match=r"is empty, and 8 images near it cannot be read either"):
        list(loader(tmp_path, batch_size=4, source=source))
    for path in (tmp_path / "val").rglob("*.*"):
        spoil(path, "empty")
    with pytest.raises(DataError, match=r"val/cat/00\.(jpg|png) is empty, and 2 images"):
        list(loader(tmp_path, "val", source=source))
