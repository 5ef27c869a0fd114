"""Data sets in memory, from small files in the real formats, and the configs of all data sets."""

import hashlib
import pickle
import urllib.error
from pathlib import Path

import numpy as np
import pytest
import torch
from hydra.utils import instantiate
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from support.image_files import write_tree
from support.small_runs import configure
from torchvision import datasets

from rdm_solo import data
from rdm_solo.data import DataError, Dataset, Images, folders, gratings
from studies.neighbours import knn_accuracy

CONF = Path(__file__).parents[2] / "conf" / "dataset"
CONFIGS = sorted(file.stem for file in CONF.glob("*.yaml"))

IMAGES = torch.zeros(3, 1, 8, 8, dtype=torch.uint8)
LABELS = torch.arange(3)


@pytest.mark.parametrize(
    ("images", "labels", "mean", "std", "message"),
    [
        (IMAGES.float(), LABELS, 0.5, 0.5, "uint8"),
        (IMAGES, LABELS.int(), 0.5, 0.5, "int64"),
        (IMAGES, LABELS + 1, 0.5, 0.5, "num_classes"),
        (IMAGES.expand(3, 3, 8, 8), LABELS, 0.5, 0.5, "mean"),
        (IMAGES, LABELS, 0.5, 0.0, "std"),
    ],
)
def test_what_is_no_data_set_is_refused(images, labels, mean, std, message):
    with pytest.raises(ValueError, match=message):
        Dataset("toy", Images(images, labels), None, 3, [mean], [std])


def test_digits_are_scikit_learns():
    source = load_digits()
    levels = (source.images * (255 / 16)).round()
    dataset = data.digits()
    split = train_test_split(range(1797), test_size=360, random_state=0)
    parts = dataset.train, dataset.val
    for part, rows in zip(parts, split):
        (pixels,) = part.images.unbind(1)
        assert np.array_equal(pixels, levels[rows])
        assert np.array_equal(part.labels, source.target[rows])
    assert dataset.num_classes == 10
    x = dataset.train.images.numpy() / 255
    np.testing.assert_allclose(dataset.mean, [x.mean()], rtol=1e-12)
    np.testing.assert_allclose(dataset.std, [x.std()], rtol=1e-12)


def test_synthetic_images_stay_what_they_were():
    """Figures measured on them are compared with later ones."""
    dataset = data.synthetic(num_train=4, num_val=1, size=8, num_classes=2)
    images = dataset.train
    assert images.labels.tolist() == [0, 0, 1, 1]
    expected = [
        [173, 118, 81],
        [199, 172, 183],
        [170, 196, 93],
    ]
    actual = images.images[0, :, 0, ::3]
    np.testing.assert_allclose(actual, expected, atol=1)  # rounding


def write_cifar(root, monkeypatch, name):
    """Write a file for each part as CIFAR's authors pickled them.

    Return the folder, and the images and labels of both parts.
    """
    source = getattr(datasets, name.upper())
    num_classes = int(name.removeprefix("cifar"))
    key = {10: "labels", 100: "fine_labels"}[num_classes]
    folder = root / source.base_folder
    folder.mkdir(parents=True)

    def write(filename, content):
        pickled = pickle.dumps(content, protocol=2)
        (folder / filename).write_bytes(pickled)
        return hashlib.md5(pickled).hexdigest()

    names = list(map(str, range(num_classes)))
    checksum = write("names", {"label_names": names})
    meta = {"filename": "names", "key": "label_names", "md5": checksum}
    monkeypatch.setattr(source, "meta", meta)
    draw = np.random.default_rng(0)
    parts = []
    for part in ("train", "test"):
        images = draw.integers(0, 256, (6, 3, 32, 32), dtype=np.uint8)
        labels = draw.integers(0, num_classes, 6).tolist()
        content = {"data": images.reshape(6, 3072), key: labels}
        checksum = write(part, content)
        monkeypatch.setattr(source, f"{part}_list", [[part, checksum]])
        parts.append((images, labels))
    return folder, parts


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_cifar_is_read_from_intact_files_only(tmp_path, monkeypatch, name):
    load = getattr(data, name)
    folder, expected = write_cifar(tmp_path, monkeypatch, name)
    executed = tmp_path / "executed"
    text = f"cos\nmkdir\n(V{executed}\ntR."  # unpickled, calls os.mkdir
    payload = text.encode()
    for path in folder.iterdir():
        intact = path.read_bytes()
        for content in (payload, intact[:-7]):
            path.write_bytes(content)
            with pytest.raises(DataError, match=f"^dataset.root={tmp_path}"):
                load(tmp_path)
        path.write_bytes(intact)
    assert not executed.exists()
    pickle.loads(payload)
    assert executed.exists(), "the payload works"

    dataset = load(str(tmp_path), download=True)  # nothing to fetch: the files are there
    assert dataset.name == f"cifar{dataset.num_classes}" == name
    parts = dataset.train, dataset.val
    for part, (images, labels) in zip(parts, expected):
        assert np.array_equal(part.images, images)
        assert part.labels.tolist() == labels


def test_a_download_that_is_not_asked_for_or_fails(tmp_path, monkeypatch):
    def refuse(*args, **kwargs):
        raise urllib.error.URLError("no network")

    monkeypatch.setattr("urllib.request.urlopen", refuse)
    with pytest.raises(DataError, match="download=true"):
        data.cifar10(tmp_path)
    with pytest.raises(DataError, match="no network"):
        data.cifar10(tmp_path, download=True)
    with pytest.raises(ValueError, match=r"dataset\.download"):
        data.cifar10(tmp_path, download="no")


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_makes_its_data_set(name, tmp_path, monkeypatch):
    monkeypatch.setenv("RDM_DATA", str(tmp_path))
    if name.startswith("cifar"):
        write_cifar(tmp_path, monkeypatch, name)
    classes = ["n01558993", "n01692333"]
    monkeypatch.setattr(folders, "imagenet100_classes", lambda: classes)
    monkeypatch.setattr(folders, "IMAGENET_CLASSES", len(classes))
    for root in (tmp_path, tmp_path / "imagenet"):
        write_tree(root, classes, train=2, val=2)

    config = configure(f"dataset={name}").dataset
    if "workers" in config:
        config.workers = 0
    dataset = instantiate(config.source)
    views = instantiate(config.views)
    assert dataset.name == config.name == name
    batches = data.loader(dataset, "train", 4, views=views)
    _, (first, second), _ = next(iter(batches))
    side = config.image_size
    assert first.shape == second.shape == (4, config.channels, side, side)


@pytest.mark.parametrize("variant", gratings.VARIANTS)
def test_pixels_say_little_about_the_class_and_gratings_much(variant):
    dataset = data.textures(variant)
    train, val = dataset.train, dataset.val
    pixels = val.images.flatten(1) / 255
    bank = train.images.flatten(1) / 255
    accuracy = knn_accuracy(bank, train.labels, pixels, val.labels)
    assert 100 / 12 < accuracy < 45
    # The energy of each class's gratings, by their Fourier coefficients.
    angles, periods = gratings.class_gratings(variant)
    angles = angles[..., None]
    coordinates = torch.arange(16) / 16
    coordinates = coordinates - 0.5
    x = coordinates.repeat(16)
    y = coordinates.repeat_interleave(16)
    across = angles.cos() * x + angles.sin() * y  # (classes, j, pixels)
    turns = periods[:, None] * across
    waves = torch.exp(2j * torch.pi * turns)
    images = pixels - pixels.mean(1, keepdim=True)
    coefficients = torch.einsum("np,cjp->ncj", images + 0j, waves)
    energy = coefficients.abs().log().sum(2)
    guess = energy.argmax(1)
    correct = guess == val.labels
    assert correct.float().mean() > 0.6


def test_textures_depend_on_the_seed_and_have_any_size():
    def draw(seed):
        return data.textures(size=24, seed=seed).val.images

    assert torch.equal(draw(0), draw(0))
    assert not torch.equal(draw(0), draw(1))
    assert draw(0).shape[2:] == (24, 24)
    with pytest.raises(ValueError, match="variant"):
        data.textures("lines")
