"""Data sets in memory, from small files in the real formats, and the configs of all data sets."""

import hashlib
import pickle
import urllib.error
from pathlib import Path

import numpy as np
import pytest
import torch
from hydra.utils import instantiate
from support.image_files import picture
from support.small_runs import configure, run
from torchvision import datasets

from rdm_solo import data
from rdm_solo.data import DataError, Dataset, Images, folders, gratings
from rdm_solo.ground.errors import UserError
from studies.neighbours import knn_accuracy

CONF = Path(__file__).parents[2] / "conf" / "dataset"


IMAGES, LABELS = torch.zeros(3, 1, 8, 8, dtype=torch.uint8), torch.arange(3)


@pytest.mark.parametrize(
    ("images", "labels", "mean", "std", "says"),
    [
        (IMAGES.float(), LABELS, 0.5, 0.5, r"images must be uint8 of shape \(N, C, H, W\)"),
        (IMAGES, LABELS.int(), 0.5, 0.5, "labels int64"),
        (IMAGES, LABELS + 1, 0.5, 0.5, "num_classes=3 allows labels from 0 to 2, got 1 to 3"),
        (IMAGES.expand(3, 3, 8, 8), LABELS, 0.5, 0.5, r"dataset\.mean must be a list of 3 numbers"),
        (IMAGES, LABELS, 0.5, 0.0, r"dataset\.std must be a number"),
    ],
)
def test_what_is_no_data_set_is_refused(images, labels, mean, std, says):
    with pytest.raises(ValueError, match=says):
        Dataset("toy", Images(images, labels), None, 3, (mean,), (std,))


def test_digits_are_scikit_learns():
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    got = data.digits()
    assert (got.name, got.num_classes, len(got.train), len(got.val)) == ("digits", 10, 1437, 360)
    bunch = load_digits()
    train, val = train_test_split(np.arange(1797), test_size=360, random_state=0)
    for part, rows in ((got.train, train), (got.val, val)):
        assert part.labels.tolist() == bunch.target[rows].tolist()
        shades = part.images[:, 0].double() * (16 / 255)
        torch.testing.assert_close(shades, torch.tensor(bunch.images[rows]), atol=0.04, rtol=0)
    x = got.train.images.double() / 255
    assert got.mean == pytest.approx([x.mean().item()], abs=1e-12)
    assert got.std == pytest.approx([x.std(correction=0).item()], abs=1e-12)


def test_synthetic_images_stay_what_they_were():
    """Figures measured on them are compared with later ones."""
    got = data.synthetic(num_train=4, num_val=1, size=8, num_classes=2).train
    assert got.labels.tolist() == [0, 0, 1, 1]
    want = torch.tensor([[173, 118, 81], [199, 172, 183], [170, 196, 93]])
    assert (got.images[0, :, 0, ::3].int() - want).abs().max() <= 1  # rounding


def write_cifar(root, monkeypatch, source):
    """Write the files of ``source`` as CIFAR's authors pickled them, six images each."""
    folder = root / source.base_folder
    folder.mkdir(parents=True)
    key = "labels" if source is datasets.CIFAR10 else "fine_labels"
    draw = np.random.default_rng(0)
    written = {}

    def write(name, content):
        raw = pickle.dumps(content, protocol=2)
        (folder / name).write_bytes(raw)
        return hashlib.md5(raw).hexdigest()

    for table in ("train_list", "test_list"):
        checksums = []
        for name, _ in getattr(source, table):
            rows = draw.integers(0, 256, (6, 3072), dtype=np.uint8)
            labels = draw.integers(0, 10, 6).tolist()
            written.setdefault(table, []).append((rows, labels))
            checksums.append([name, write(name, {"data": rows, key: labels})])
        monkeypatch.setattr(source, table, checksums)
    meta = dict(source.meta)
    meta["md5"] = write(meta["filename"], {meta["key"]: [str(i) for i in range(100)]})
    monkeypatch.setattr(source, "meta", meta)
    return folder, written


MOMENTS = {  # solo-learn's
    10: ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    100: ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
}
cifars = pytest.mark.parametrize(
    ("load", "source", "classes"),
    [(data.cifar10, datasets.CIFAR10, 10), (data.cifar100, datasets.CIFAR100, 100)],
)


@cifars
def test_cifar_from_its_own_files(tmp_path, monkeypatch, load, source, classes):
    _, written = write_cifar(tmp_path, monkeypatch, source)
    got = load(str(tmp_path), download=True)  # nothing to fetch: the files are there
    assert got.num_classes == classes
    assert (got.mean, got.std) == MOMENTS[classes]
    for part, table in ((got.train, "train_list"), (got.val, "test_list")):
        rows = np.concatenate([rows for rows, _ in written[table]]).reshape(-1, 3, 32, 32)
        assert torch.equal(part.images, torch.from_numpy(rows))
        assert part.labels.tolist() == [n for _, labels in written[table] for n in labels]


@cifars
def test_a_file_that_is_not_cifars_is_refused_and_never_unpickled(
    tmp_path, monkeypatch, load, source, classes
):
    folder, _ = write_cifar(tmp_path, monkeypatch, source)
    payload = f"cos\nmkdir\n(V{tmp_path / 'executed'}\ntR.".encode()  # unpickled, calls os.mkdir
    for name, _ in [*source.train_list, *source.test_list, [source.meta["filename"], ""]]:
        intact = (folder / name).read_bytes()
        for content in (payload, intact[:-7]):
            (folder / name).write_bytes(content)
            with pytest.raises(DataError, match=f"^dataset.root={tmp_path} holds no intact") as no:
                load(tmp_path)
            assert "dataset.download=true" in str(no.value)
        (folder / name).write_bytes(intact)
    assert not (tmp_path / "executed").exists()
    pickle.loads(payload)
    assert (tmp_path / "executed").exists(), "the payload works"
    load(tmp_path)


def test_a_download_that_is_not_asked_for_or_fails(tmp_path, monkeypatch):
    def refuse(*args, **kwargs):
        raise urllib.error.URLError("name or service not known")

    monkeypatch.setattr("urllib.request.urlopen", refuse)
    with pytest.raises(DataError, match=r"dataset\.root.*dataset\.download=true"):
        data.cifar10(tmp_path / "none")
    with pytest.raises(DataError, match="name or service not known"):
        data.cifar10(tmp_path, download=True)
    with pytest.raises(ValueError, match=r"^dataset\.download must be true or false, got 'no'"):
        data.cifar10(tmp_path, download="no")


def write_imagenet(root, monkeypatch):
    """Write ImageNet and ImageNet-100 with two classes."""
    names = ["n01558993", "n01692333"]
    monkeypatch.setattr(folders, "imagenet100_classes", lambda: names)
    monkeypatch.setattr(folders, "IMAGENET_CLASSES", len(names))
    for i in range(8):
        folder = root / ("train", "val")[i // 4] / names[i % 2]
        folder.mkdir(parents=True, exist_ok=True)
        picture(i, 40, 50).save(folder / f"{i}.JPEG")


@pytest.mark.parametrize("name", sorted(file.stem for file in CONF.glob("*.yaml")))
def test_a_config_makes_its_data_set(name, tmp_path, monkeypatch):
    monkeypatch.setenv("RDM_DATA", str(tmp_path))
    for source in (datasets.CIFAR10, datasets.CIFAR100):
        write_cifar(tmp_path, monkeypatch, source)
    for root in (tmp_path, tmp_path / "imagenet"):
        write_imagenet(root, monkeypatch)
    assert (CONF / f"{name}.yaml").read_text().startswith("# ")
    config = configure(f"dataset={name}").dataset
    source, views = instantiate(config.source), instantiate(config.views)
    assert source.name == config.name == name
    assert source.train.channels == config.channels
    batches = data.loader(source, "train", 4, views=views)
    _, crops, _ = next(iter(batches))
    assert [c.shape for c in crops] == [(4, config.channels, *[config.image_size] * 2)] * 2


@pytest.mark.parametrize("part", ["source", "views"])
def test_a_part_that_is_something_else_is_named(tmp_path, part):
    message = rf"dataset\.{part} must name a function that returns a rdm_solo\.data\."
    with pytest.raises(ValueError, match=message):
        run(tmp_path, f"dataset.{part}=null", f"++dataset.{part}={{_target_: builtins.dict}}")


class TestTextures:
    @pytest.mark.parametrize("variant", gratings.VARIANTS)
    def test_pixels_say_little_about_the_class_and_gratings_much(self, variant):
        dataset = data.textures(variant)
        train, val = (part.images.flatten(1).float() / 255 for part in (dataset.train, dataset.val))
        pixels = knn_accuracy(train, dataset.train.labels, val, dataset.val.labels)
        assert 100 / 12 < pixels < 45
        angles, periods = (x.double() for x in gratings.VARIANTS[variant]())
        at = torch.arange(16, dtype=torch.float64) / 16 - 0.5
        x, y = at.repeat(16), at.repeat_interleave(16)
        across = angles.cos()[..., None] * x + angles.sin()[..., None] * y  # (classes, j, pixels)
        waves = torch.polar(torch.ones_like(across), 2 * np.pi * periods[..., None] * across)
        images = val.double() - val.double().mean(1, keepdim=True)
        energy = torch.einsum("np,cjp->ncj", images + 0j, waves).abs().log().sum(2)
        accuracy = 100 * (energy.argmax(1) == dataset.val.labels).double().mean()
        assert accuracy > 60

    def test_they_depend_on_the_seed_and_have_any_size(self):
        first, again, other = (data.textures(size=24, seed=seed).val.images for seed in (0, 0, 1))
        assert torch.equal(first, again)
        assert not torch.equal(first, other)
        assert first.shape[2:] == (24, 24)

    def test_another_variant_is_refused(self):
        with pytest.raises(UserError, match="textures or angles"):
            data.textures("lines")
