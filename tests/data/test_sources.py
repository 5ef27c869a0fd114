"""Data sets in memory, from small files in the real formats, and their configs."""

import hashlib
import os
import pickle
import re
import urllib.error
from pathlib import Path

import numpy as np
import pytest
import torch
from hydra.utils import instantiate
from support.small_runs import configure, run
from torchvision import datasets

from rdm_solo import data
from rdm_solo.data import DataError, Dataset, Images

CONF = Path(__file__).parents[2] / "conf" / "dataset"


def test_images_refuse_what_is_no_data_set():
    images = torch.zeros(3, 1, 8, 8, dtype=torch.uint8)
    labels = torch.zeros(3, dtype=torch.int64)
    for wrong, match in (
        ((images.float(), labels), r"images must be uint8.*got torch\.float32"),
        ((images[0], labels), r"of shape \(N, C, H, W\).*got torch\.uint8 of shape \(1, 8, 8\)"),
        ((images, labels.int()), r"labels int64 of shape \(N,\).*int32 of shape \(3,\)"),
        ((images, labels[:2]), r"shape \(3, 1, 8, 8\) and torch\.int64 of shape \(2,\)"),
        ((images[:0], labels[:0]), r"at least one,.*\(0, 1, 8, 8\)"),
    ):
        with pytest.raises(ValueError, match=match):
            Images(*wrong)
    good = Images(images, torch.tensor([0, 1, 2]))
    with pytest.raises(ValueError, match=r"num_classes=2 allows labels from 0 to 1, got 0 to 2"):
        Dataset("toy", good, good, 2, (0.5,), (0.5,))
    below = Images(images, torch.tensor([0, -1, 1]))
    with pytest.raises(ValueError, match=r"labels from 0 to 1, got -1 to 1"):
        Dataset("toy", below, None, 2, (0.5,), (0.5,))


def test_images_are_compared_by_identity():
    """By their tensors' values the comparison would itself be a tensor, and an error."""
    first, second = (Images(torch.zeros(3, 1, 8, 8).byte(), torch.arange(3)) for _ in range(2))
    assert first != second
    assert {first: 1}[first] == 1


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


def test_synthetic_depends_on_its_seed_alone_and_can_be_learned():
    got = data.synthetic(num_train=400, num_val=200, size=12, channels=2, num_classes=7)
    assert got.train.images.shape == (400, 2, 12, 12)
    assert len(got.val) == 200
    assert got.train.labels.unique().tolist() == list(range(7))
    again = data.synthetic(num_train=400, num_val=200, size=12, channels=2, num_classes=7)
    assert torch.equal(got.train.images, again.train.images)
    other = data.synthetic(num_train=400, num_val=200, size=12, channels=2, num_classes=7, seed=1)
    assert not torch.equal(got.train.images, other.train.images)
    train, val = (part.images.flatten(1).float() for part in (got.train, got.val))
    nearest = torch.cdist(val, train).argmin(1)
    assert (got.train.labels[nearest] == got.val.labels).float().mean() > 0.9  # chance: 0.14


def test_synthetic_images_stay_what_they_were():
    """Figures measured on them are compared with later ones."""
    got = data.synthetic(num_train=4, num_val=1, size=8, num_classes=2).train
    assert got.labels.tolist() == [0, 0, 1, 1]
    want = torch.tensor([[173, 118, 81], [199, 172, 183], [170, 196, 93]])
    assert (got.images[0, :, 0, ::3].int() - want).abs().max() <= 1  # rounding


def test_synthetic_is_a_smooth_pattern_a_smooth_variation_and_noise():
    """A least-squares fit of 4 x 4 values, enlarged bilinearly, separates the three."""
    got = data.synthetic(num_train=500, num_val=1, size=16, num_classes=20).train
    images = got.images.double().numpy() / 255
    at = ((np.arange(16) + 0.5) * 4 / 16 - 0.5).clip(0, 3)
    enlarge = np.maximum(0, 1 - np.abs(at[:, None] - np.arange(4)))
    values = np.linalg.pinv(enlarge) @ images @ np.linalg.pinv(enlarge).T
    noise = images - enlarge @ values @ enlarge.T
    patterns = np.stack([values[got.labels == n].mean(0) for n in range(20)])
    variation = values - patterns[got.labels]
    # Measured over seeds 0 to 4: up to 4 standard errors, and 4 % of the noise lost at 0 and 255.
    assert values.mean() == pytest.approx(0.5, abs=0.03)
    assert patterns.std() == pytest.approx(0.18, rel=0.07)
    assert variation.std() == pytest.approx(0.09, rel=0.04)
    assert noise.std() == pytest.approx(0.05, rel=0.06)


@pytest.mark.parametrize(("option", "most"), [("channels", 1024), ("size", 4096)])
def test_synthetic_names_the_largest_size_it_accepts(option, most):
    with pytest.raises(ValueError, match=rf"from \d to {most}, got {most + 1}"):
        data.synthetic(num_train=1, num_val=1, num_classes=1, **{option: most + 1})


@pytest.mark.parametrize("option", ["num_train", "num_val", "size", "channels", "num_classes"])
@pytest.mark.parametrize("value", [0, -3, 1.5])
def test_synthetic_names_a_size_it_refuses(option, value):
    named = "image_size" if option == "size" else option
    says = rf"^dataset\.{named} must be a whole number (of at least 1|from \d to \d+), got {value}"
    with pytest.raises(ValueError, match=says):
        data.synthetic(**{option: value})


def write_cifar(root, monkeypatch, source):
    """The files of ``source`` as CIFAR's authors pickled them, six images each."""
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
SOURCES = [(data.cifar10, datasets.CIFAR10, 10), (data.cifar100, datasets.CIFAR100, 100)]


@pytest.mark.parametrize(("load", "source", "num_classes"), SOURCES)
@pytest.mark.parametrize("download", [False, True])  # nothing to fetch: the files are there
def test_cifar_from_its_own_files(tmp_path, monkeypatch, load, source, num_classes, download):
    _, written = write_cifar(tmp_path, monkeypatch, source)
    got = load(str(tmp_path), download=download)
    assert got.num_classes == num_classes
    assert (got.mean, got.std) == MOMENTS[num_classes]
    for part, table in ((got.train, "train_list"), (got.val, "test_list")):
        rows = np.concatenate([rows for rows, _ in written[table]]).reshape(-1, 3, 32, 32)
        assert torch.equal(part.images, torch.from_numpy(rows))
        assert part.labels.tolist() == [n for _, labels in written[table] for n in labels]


@pytest.mark.parametrize(("load", "source", "num_classes"), SOURCES)
def test_a_missing_cifar_says_what_to_do(tmp_path, load, source, num_classes):
    with pytest.raises(DataError) as caught:
        load(tmp_path / "nowhere")
    message = str(caught.value)
    assert isinstance(caught.value, ValueError)
    assert "\n" not in message
    assert f"dataset.root={tmp_path / 'nowhere'}" in message
    assert str(tmp_path / "nowhere" / source.base_folder) in message
    assert "dataset.download=true" in message


@pytest.mark.parametrize(("load", "source", "num_classes"), SOURCES)
def test_a_corrupt_or_missing_file_is_named(tmp_path, monkeypatch, load, source, num_classes):
    folder, _ = write_cifar(tmp_path, monkeypatch, source)
    for name, _ in [*source.train_list[-1:], *source.test_list, [source.meta["filename"], ""]]:
        intact = (folder / name).read_bytes()
        (folder / name).write_bytes(intact[:-7])
        with pytest.raises(DataError, match=f"{name} does not match its checksum"):
            load(tmp_path)
        (folder / name).unlink()
        with pytest.raises(DataError, match=f"{name} is missing"):
            load(tmp_path)
        (folder / name).write_bytes(intact)
    load(tmp_path)


class _Payload:
    """A pickle that makes a folder where it is read."""

    def __init__(self, made):
        self.made = str(made)

    def __reduce__(self):
        return os.mkdir, (self.made,)


@pytest.mark.parametrize(("load", "source", "num_classes"), SOURCES)
def test_what_is_not_cifars_own_file_is_neither_unpickled_nor_waited_for(
    tmp_path, monkeypatch, load, source, num_classes
):
    folder, _ = write_cifar(tmp_path, monkeypatch, source)
    payload = pickle.dumps(_Payload(tmp_path / "executed"))
    for name, _ in [*source.train_list, *source.test_list, [source.meta["filename"], ""]]:
        intact = (folder / name).read_bytes()
        for make in (lambda path: path.write_bytes(payload), os.mkfifo, os.mkdir):
            (folder / name).unlink()
            make(folder / name)
            with pytest.raises(DataError, match=f"{name} does not match its checksum"):
                load(tmp_path)
            (folder / name).rmdir() if make is os.mkdir else (folder / name).unlink()
            (folder / name).touch()
        (folder / name).write_bytes(intact)
    assert not (tmp_path / "executed").exists()
    load(tmp_path)


def test_a_word_does_not_download(tmp_path, monkeypatch):
    def fetch(*args, **kwargs):
        raise AssertionError("it tried to download")

    monkeypatch.setattr("torchvision.datasets.CIFAR10.download", fetch)
    with pytest.raises(ValueError, match=r"^dataset\.download must be true or false, got 'no'"):
        data.cifar10(tmp_path, download="no")


def test_a_failed_download_says_what_failed(tmp_path, monkeypatch):
    def refuse(*args, **kwargs):
        raise urllib.error.URLError("name or service not known")

    monkeypatch.setattr("urllib.request.urlopen", refuse)
    with pytest.raises(DataError) as caught:
        data.cifar10(tmp_path, download=True)
    message = str(caught.value)
    assert "\n" not in message
    assert datasets.CIFAR10.url in message
    assert f"dataset.root={tmp_path}" in message
    assert "name or service not known" in message


def test_a_corrupt_archive_is_named(tmp_path, monkeypatch):
    def half(*args, **kwargs):
        (tmp_path / datasets.CIFAR10.filename).write_bytes(b"half an archive")

    monkeypatch.setattr("torchvision.datasets.utils._urlretrieve", half)
    monkeypatch.setattr("torchvision.datasets.utils._get_redirect_url", lambda url, **_: url)
    with pytest.raises(DataError, match=r"cifar-10-python\.tar\.gz") as caught:
        data.cifar10(tmp_path, download=True)
    assert "\n" not in str(caught.value)


def test_an_archive_is_no_root_for_cifar(tmp_path):
    archive = tmp_path / datasets.CIFAR10.filename
    archive.write_bytes(b"half an archive")
    with pytest.raises(
        DataError, match=f"dataset.root={archive} holds no intact {datasets.CIFAR10.base_folder}"
    ):
        data.cifar10(archive)


# tests/data/test_folder_runs.py and test_shards.py have these.
IN_FOLDERS = ("folder", "imagenet", "imagenet100", "shards")


@pytest.mark.parametrize(
    "name", sorted({file.stem for file in CONF.glob("*.yaml")} - {*IN_FOLDERS})
)
def test_a_group_instantiates(name, tmp_path, monkeypatch):
    monkeypatch.setenv("RDM_DATA", str(tmp_path))
    for source in (datasets.CIFAR10, datasets.CIFAR100):
        write_cifar(tmp_path, monkeypatch, source)
    assert (CONF / f"{name}.yaml").read_text().startswith("# ")
    config = configure(f"dataset={name}")
    source = instantiate(config.dataset.source)
    views = instantiate(config.dataset.views)
    assert source.name == config.dataset.name == name
    assert source.train.images.shape[1:] == (
        config.dataset.channels,
        config.dataset.image_size,
        config.dataset.image_size,
    )
    assert len(views.each) == 2
    _, crops, _ = next(iter(data.loader(source, "train", 4, views=views)))
    assert [c.shape for c in crops] == [(4, *source.train.images.shape[1:])] * 2


@pytest.mark.parametrize("part", ["source", "views"])
@pytest.mark.parametrize("value", ["null", "3", "{_target_: builtins.dict}"])
def test_a_part_that_is_something_else_is_named(tmp_path, part, value):
    says = f"dataset.{part} must name a function that returns a rdm_solo.data."
    with pytest.raises(ValueError, match=re.escape(says)):
        run(tmp_path, f"dataset.{part}=null", f"++dataset.{part}={value}")


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("++dataset.source.x=3", r"data\.digits cannot be called: digits\(\) got .* argument 'x'"),
        ("++dataset.views.x=3", r"data\.Views cannot be called: .* argument 'x'"),
        (
            "dataset.source._target_=os.none",
            r"os\.none cannot be called: .*No module named 'os\.none",
        ),
    ],
)
def test_a_part_that_cannot_be_made_is_named_in_one_line(tmp_path, option, says):
    with pytest.raises(ValueError, match=says) as caught:
        run(tmp_path, option)
    assert "\n" not in str(caught.value)


def test_cifar_presets_are_the_papers():
    paper = {"crop_scale": [0.2, 1.0], "flip": 0.5, "jitter": 0.8, "grey": 0.2, "hue": 0.1}
    paper |= dict.fromkeys(("brightness", "contrast", "saturation"), 0.4)
    paper |= {"blur": 0.0, "solarize": 0.0}
    for name in ("cifar10", "cifar100"):
        options = configure(f"dataset={name}").dataset.views.pipelines[0]
        assert {key: options[key] for key in paper} == paper
