"""Batches of image files: the same ones however they are loaded; broken files are named."""

import multiprocessing
import os
import shutil
import tempfile

import pytest
import torch
from PIL import Image
from support.image_files import (
    a_pair,
    assert_same,
    epoch_of,
    loader,
    spoil,
    write_tree,
)

from rdm_solo import data
from rdm_solo.data import DataError, Dataset, DecodeOptions, Files, folders


@pytest.mark.parametrize("cores", [1, 3])
def test_each_core_has_a_worker_that_outlives_the_epoch(tree, monkeypatch, cores):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(cores), raising=False)
    before = multiprocessing.active_children()
    batches = loader(tree, source={"workers": None})
    epoch_of(batches)
    after = multiprocessing.active_children()
    assert len(after) == len(before) + cores


def test_workers_change_neither_batches_nor_the_runs_random_numbers(tree):
    state = torch.get_rng_state()
    alone = loader(tree)
    batches = loader(tree, source={"workers": 2})
    for epoch in (0, 1, 0):  # the later ones with the first one's workers
        batches.set_epoch(epoch)
        next(iter(batches))  # an epoch left early does not leak into the next
        actual = epoch_of(batches, epoch)
        assert_same(actual, epoch_of(alone, epoch))
    val = loader(tree, "val", source={"workers": 2})
    val_alone = loader(tree, "val")
    assert_same(list(val), list(val_alone))
    assert torch.equal(torch.get_rng_state(), state)


def test_a_tmpdir_that_no_worker_can_use_is_refused(tree, monkeypatch):
    """A worker's socket could not have its name, and the batches would never come."""
    monkeypatch.setattr(tempfile, "tempdir", "/tmp/".ljust(76, "t"))
    with pytest.raises(DataError, match="at most 75 bytes"):
        epoch_of(loader(tree, source={"workers": 1}))


@pytest.mark.parametrize("rotate", [0.0, 0.2])
def test_any_torch_data_set_is_loaded_like_images_in_memory(rotate):
    """Compare where the crop is the whole image and not rounded; measured: 1.8e-7 apart."""
    images = data.synthetic(num_train=30, num_val=1, size=24).train
    samples = []
    for pixels in images.images.permute(0, 2, 3, 1):
        image = Image.fromarray(pixels.numpy())
        samples.append((image, "label"))
    decoding = DecodeOptions(image_size=24, resize=24, workers=0)
    files = Files(samples, images.labels, decoding)
    options = {
        "size": 24,
        "crop_scale": (1, 1),
        "crop_ratio": (1, 1),
        "solarize": 0.0,
    }
    views = a_pair(rotate=rotate, **options)
    epochs = []
    for part in (images, files):
        dataset = Dataset("toy", part, part, 10, *folders.IMAGENET)
        training = data.loader(dataset, "train", 8, views=views, seed=3)
        validation = data.loader(dataset, "val", 8)
        epochs.append([epoch_of(training, 5), epoch_of(validation)])
    torch.testing.assert_close(*epochs, atol=5e-6, rtol=0)
    samples[3] = ("no image", "label")
    with pytest.raises(DataError, match=r"^image 3 "):
        epoch_of(validation)


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("truncated", "truncated"),
        ("empty", "is not an image"),
        ("float", "floating-point"),
        ("gone", "No such file"),
    ],
)
@pytest.mark.parametrize("part", ["train", "val"])
def test_an_unreadable_image_is_named(tmp_path, part, how, reason):
    batches = loader(write_tree(tmp_path, train=3), part)
    path = tmp_path / part / "dog" / "01.jpg"
    spoil(path, how)
    with pytest.raises(DataError, match=f"^{path} .*{reason}.*dataset.skip_broken") as error:
        epoch_of(batches)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("workers", [0, 2])
def test_skipped_images_are_replaced_counted_and_named(tmp_path, caplog, workers):
    """Compare with a folder that has copies of the neighbours in their place."""
    train = write_tree(tmp_path, train=8, val=1) / "train"
    neighbours = {
        "cat/07.jpg": "dog/00.jpg",  # numbers 7 and 8
        "eel/06.jpg": "cat/00.jpg",  # numbers 22, and 0 after the end
        "eel/07.jpg": "cat/00.jpg",  # number 23
    }
    replacements = {7: 8, 22: 0, 23: 0}
    for name, neighbour in neighbours.items():
        shutil.copy(train / neighbour, train / name)
    with_copies = epoch_of(loader(tmp_path, drop_last=False))
    for name in neighbours:
        spoil(train / name, "truncated")

    source = {"skip_broken": True, "workers": workers}
    batches = loader(tmp_path, source=source, drop_last=False)
    for _ in range(2):
        epoch = epoch_of(batches)
        for actual, expected in zip(epoch, with_copies, strict=True):
            indices, crops, labels = actual
            samples, expected_crops, _ = expected
            expected_indices = [replacements.get(i, i) for i in samples.tolist()]
            assert indices.tolist() == expected_indices
            assert torch.equal(labels, batches.images.labels[indices])
            assert_same(crops, expected_crops)
        batches.report_skipped()
    assert sorted(batches.skipped) == [str(train / name) for name in neighbours]
    (line,) = caplog.messages  # nothing new after the second epoch
    assert "3 unreadable images" in line


def test_too_many_broken_images_are_refused_even_so(tmp_path):
    write_tree(tmp_path, train=3, val=1)
    for path in tmp_path.rglob("*.*"):
        spoil(path, "empty")
    source = {"skip_broken": True}
    counts = {"train": 9, "val": 3}
    for part, count in counts.items():
        batches = loader(tmp_path, part, batch_size=4, source=source)
        with pytest.raises(DataError, match=f"{count} unreadable images"):
            list(batches)
