"""Sources on small files in the real formats, and what an epoch's batches hold."""

import hashlib
import math
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

from rdm_solo import data, distributed
from rdm_solo.data import DataError, Dataset, EpochLoader, Images, Pipeline, Views

CONF = Path(__file__).parents[2] / "conf" / "dataset"


# --- sources ----------------------------------------------------------------------------------


def test_images_refuse_what_is_no_data_set():
    images = torch.zeros(3, 1, 8, 8, dtype=torch.uint8)
    labels = torch.zeros(3, dtype=torch.int64)
    for wrong, match in (
        ((images.float(), labels), r"images must be uint8.*float32"),
        ((images[0], labels), r"images must be uint8 of shape \(N, C, H, W\)"),
        ((images, labels.int()), r"labels must be int64.*int32"),
        ((images, labels[:2]), r"one label for each image, got 3 images and 2 labels"),
        ((images[:0], labels[:0]), r"at least one image"),
    ):
        with pytest.raises(ValueError, match=match):
            Images(*wrong)
    good = Images(images, torch.tensor([0, 1, 2]))
    with pytest.raises(ValueError, match=r"num_classes=2 allows labels from 0 to 1, got 0 to 2"):
        Dataset("toy", good, good, 2, (0.5,), (0.5,))


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


SOURCES = [(data.cifar10, datasets.CIFAR10, 10), (data.cifar100, datasets.CIFAR100, 100)]


@pytest.mark.parametrize(("load", "source", "num_classes"), SOURCES)
@pytest.mark.parametrize("download", [False, True])  # nothing to fetch: the files are there
def test_cifar_from_its_own_files(tmp_path, monkeypatch, load, source, num_classes, download):
    _, written = write_cifar(tmp_path, monkeypatch, source)
    got = load(str(tmp_path), download=download)
    assert got.num_classes == num_classes
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


# --- the loader -------------------------------------------------------------------------------


def toy(n=50, channels=3, size=8):
    """Images that tell their index: its number is their label."""
    images = data.synthetic(n, 1, size, channels, num_classes=2).train.images
    return Images(images, torch.arange(n))


def loader(images=None, batch_size=8, pipelines=None, **options):
    images = toy() if images is None else images
    channels = images.images.shape[1]
    views = Views([Pipeline(size=8, blur=0.5)] if pipelines is None else pipelines)
    options = {"mean": (0.4,) * channels, "std": (0.2,) * channels, "views": views} | options
    return EpochLoader(images, batch_size, **options)


def epoch_views(loader, epoch=0):
    """Each sample's views in one epoch, by its index."""
    loader.set_epoch(epoch)
    return {
        index: torch.stack(views)
        for indices, crops, _ in loader
        for index, *views in zip(indices.tolist(), *crops, strict=True)
    }


def test_a_batch_is_solo_learns():
    batches = list(loader())
    assert len(batches) == len(loader()) == 6
    for indices, crops, labels in batches:
        assert indices.dtype == labels.dtype == torch.int64
        assert torch.equal(indices, labels)
        assert isinstance(crops, list)
        assert [c.shape for c in crops] == [(8, 3, 8, 8)] * 2
        assert all(c.dtype == torch.float32 for c in crops)
    seen = torch.cat([indices for indices, _, _ in batches])
    assert len(seen.unique()) == 48
    assert not torch.equal(seen, seen.sort().values)


def test_views_are_normalised_after_augmentation():
    images, mean, std = toy(), (0.1, 0.5, 0.7), (0.2, 0.3, 0.4)
    views = Views([Pipeline(size=8, blur=0.5)])
    batches = loader(images, views=views, mean=mean, std=std, seed=3)
    batches.set_epoch(4)
    for indices, crops, _ in batches:
        x = images.images[indices].float() / 255
        uniforms = views.uniforms(indices, seed=3, epoch=4)
        for v, crop in enumerate(crops):
            want = views.view(x, v, uniforms[v])
            want = (want - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
            torch.testing.assert_close(crop, want, atol=2e-6, rtol=0)


def test_validation_is_every_image_once_in_order():
    images, mean, std = toy(), (0.1, 0.5, 0.7), (0.2, 0.3, 0.4)
    batches = EpochLoader(images, 8, mean=mean, std=std)
    x, labels = (torch.cat(parts) for parts in zip(*batches, strict=True))
    assert len(batches) == 7
    assert labels.tolist() == list(range(50))
    want = images.images.float() / 255
    want = (want - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
    torch.testing.assert_close(x, want, atol=2e-6, rtol=0)


def test_a_sample_gets_the_same_views_however_it_is_loaded():
    want = epoch_views(loader(drop_last=False), epoch=2)
    assert len(want) == 50
    shards = [epoch_views(loader(rank=r, world_size=3), epoch=2) for r in range(3)]
    for other in (
        epoch_views(loader(batch_size=17, drop_last=False), epoch=2),
        epoch_views(loader(shuffle=False), epoch=2),
        *shards,
    ):
        assert other
        assert all(torch.equal(views, want[index]) for index, views in other.items())
    for other in (epoch_views(loader(drop_last=False, seed=1), 2), epoch_views(loader(), 3)):
        assert not any(torch.equal(views, want[index]) for index, views in other.items())
    assert not any(torch.equal(first, second) for first, second in want.values())


def test_the_order_is_the_seeds_and_the_epochs():
    def order(epoch=0, **options):
        batches = loader(**options)
        batches.sampler.set_epoch(epoch)  # as Lightning does
        return torch.cat([indices for indices, _, _ in batches]).tolist()

    assert order(1) == order(1)
    assert len({tuple(order(e, seed=s)) for e in (0, 1, 2) for s in (0, 1, 2)}) == 9
    assert order(shuffle=False) == list(range(48))


@pytest.mark.parametrize("world", [2, 3, 5])
def test_processes_together_see_what_one_sees(world):
    one = list(loader(batch_size=4 * world))
    ranks = [list(loader(batch_size=4, rank=r, world_size=world)) for r in range(world)]
    assert {len(batches) for batches in ranks} == {len(one)}
    for step, (indices, crops, _) in enumerate(one):
        assert torch.equal(torch.cat([batches[step][0] for batches in ranks]), indices)
        for v, crop in enumerate(crops):
            assert torch.equal(torch.cat([batches[step][1][v] for batches in ranks]), crop)


@pytest.mark.parametrize("n", [5, 8, 16, 17, 33, 50])
@pytest.mark.parametrize("batch_size", [1, 2, 4, 64])
@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_validation_is_shared_out_in_equal_numbers_of_batches(n, batch_size, world):
    options = {"mean": (0.4,), "std": (0.2,), "world_size": world}
    ranks = [EpochLoader(toy(n, 1), batch_size, rank=r, **options) for r in range(world)]
    batches = [[labels for _, labels in loader] for loader in ranks]
    assert {len(b) for b in batches} == {len(loader) for loader in ranks}
    assert len(batches[0]) in (n // (batch_size * world), -(-n // (batch_size * world)))
    sizes = [len(labels) for b in batches for labels in b]
    assert min(sizes) >= 1
    assert max(sizes) <= batch_size + 1
    steps = [labels for step in zip(*batches, strict=True) for labels in step]
    assert torch.cat(steps).tolist() == list(range(n))
    if world == 1:
        assert sizes[:-1] == [batch_size] * (len(sizes) - 1)


@pytest.mark.parametrize("n", [8, 9, 15, 16, 17, 31])
@pytest.mark.parametrize("world", [1, 2, 4])
def test_training_without_dropping_leaves_no_batch_of_one(n, world):
    ranks = [loader(toy(n), 2, rank=r, world_size=world, drop_last=False) for r in range(world)]
    batches = [[indices for indices, _, _ in loader] for loader in ranks]
    assert len({len(b) for b in batches}) == 1
    assert min(len(indices) for b in batches for indices in b) >= 2
    assert torch.cat([indices for b in batches for indices in b]).sort().values.tolist() == list(
        range(n)
    )


def test_grey_images_are_expanded_when_finished():
    grey = list(loader(toy(channels=1)))
    wide = list(loader(toy(channels=1), expand_channels=3))
    for (_, crops, _), (_, expanded, _) in zip(grey, wide, strict=True):
        for crop, three in zip(crops, expanded, strict=True):
            assert three.shape == (8, 3, 8, 8)
            assert torch.equal(three, crop.expand(8, 3, 8, 8))
    x, _ = next(iter(loader(toy(channels=1), views=None, expand_channels=3)))
    assert x.shape == (8, 3, 8, 8)
    assert next(iter(loader(expand_channels=3)))[1][0].shape == (8, 3, 8, 8)
    with pytest.raises(ValueError, match=r"takes 4 channels .* of 1 or 4 channels .*, not 3"):
        loader(expand_channels=4)


def test_multi_crop_has_its_own_sizes():
    pipelines = [Pipeline(size=8), Pipeline(size=4, num_crops=3)]
    _, crops, _ = next(iter(loader(pipelines=pipelines)))
    assert [c.shape[-1] for c in crops] == [8, 8, 4, 4, 4]


@pytest.mark.parametrize(
    ("batch_size", "world", "match"),
    [
        (1, 1, r"batch_size must be a whole number of at least 2, got 1"),
        (2.0, 1, r"batch_size must be .*, got 2\.0"),
        (True, 1, r"batch_size must be .*, got True"),
        (51, 1, r"batch_size=51 on 1 process takes 51 images.*has 50: give at most 50"),
        (26, 2, r"batch_size=26 on 2 processes takes 52 images.*has 50: give at most 25"),
    ],
)
def test_a_batch_size_that_cannot_be_is_refused(batch_size, world, match):
    with pytest.raises(ValueError, match=match):
        len(loader(batch_size=batch_size, rank=0, world_size=world))


def test_too_few_images_for_the_processes_are_refused():
    with pytest.raises(ValueError, match=r"batch_size=4 on 8 processes needs more than 5 images"):
        len(loader(toy(5), 4, views=None, rank=0, world_size=8))


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"mean": (0.5,)}, r"mean must be a list of 3 numbers, one for each channel .*\(0\.5,\)"),
        ({"mean": 0.5}, r"mean must be a list of 3 numbers, one for each channel .* got 0\.5"),
        ({"std": (0.2, 0.0, 0.2)}, r"std must be a number above 0, got 0\.0"),
        ({"mean": (0.2, math.nan, 0.2)}, r"mean must be a finite number, got nan"),
        ({"rank": 1}, "rank=1 and world_size=None come together"),
        ({"rank": 2, "world_size": 2}, "rank=2 must be at least 0 and below world_size=2"),
    ],
)
def test_other_options_that_cannot_be_are_refused(options, match):
    with pytest.raises(ValueError, match=match):
        loader(**options)


def test_processes_are_read_when_iteration_starts(tmp_path):
    batches = loader(batch_size=8)
    assert len(batches) == 6
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path / 'meet'}", rank=0, world_size=1
    )
    try:
        assert (distributed.rank(), distributed.world_size()) == (0, 1)
        assert len(batches) == 6
    finally:
        torch.distributed.destroy_process_group()


# --- the configuration ------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["digits", "cifar10", "cifar100", "synthetic"])
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
    assert views.num_crops == 2
    assert hash(views.pipelines[0])
    batches = EpochLoader(source.train, 4, views=views, mean=source.mean, std=source.std)
    _, crops, _ = next(iter(batches))
    assert [c.shape for c in crops] == [(4, *source.train.images.shape[1:])] * 2


@pytest.mark.parametrize("part", ["source", "views"])
@pytest.mark.parametrize("value", ["null", "{_target_: builtins.dict}"])
def test_a_part_that_is_something_else_is_named(tmp_path, part, value):
    says = f"dataset.{part} must name a function that returns a rdm_solo.data."
    with pytest.raises(ValueError, match=re.escape(says)):
        run(tmp_path, f"dataset.{part}=null", f"++dataset.{part}={value}")


def test_cifar_presets_are_the_papers():
    paper = {"crop_scale": [0.2, 1.0], "flip": 0.5, "jitter": 0.8, "grey": 0.2, "hue": 0.1}
    paper |= dict.fromkeys(("brightness", "contrast", "saturation"), 0.4)
    paper |= {"blur": 0.0, "solarize": 0.0}
    for name in ("cifar10", "cifar100"):
        options = configure(f"dataset={name}").dataset.views.pipelines[0]
        assert {key: options[key] for key in paper} == paper
