"""Batches of images in memory: order, views, shares of processes, and what is refused."""

import math

import pytest
import torch

from rdm_solo import data
from rdm_solo.data import EpochLoader, Images, Pipeline, Views


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


def test_processes_are_read_when_iteration_starts(monkeypatch):
    batches = loader(batch_size=8, shuffle=False)
    assert len(batches) == 6
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.get_rank", lambda *group: 1)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda *group: 2)
    assert len(batches) == 3
    seen = [indices.tolist() for indices, _, _ in batches]
    assert seen == [[*range(low, low + 8)] for low in (8, 24, 40)]
