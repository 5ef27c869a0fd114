"""Batches of images in memory: order, views, shares of processes, and what is refused."""

import pytest
import torch
from support.image_files import by_sample, epoch_of, same

from rdm_solo import data
from rdm_solo.data import Dataset, Images, Pipeline, Views

MEAN, STD = (0.1, 0.5, 0.7), (0.2, 0.3, 0.4)
BLURRED = [Pipeline(size=8, blur=0.5)]


def toy(n=50, channels=3, mean=MEAN, std=STD):
    """Return images whose label is their index."""
    images = data.synthetic(n, 1, 8, channels, num_classes=2).train.images
    return Dataset("toy", Images(images, torch.arange(n)), None, n, mean, std)


def grey(n=50):
    return toy(n, 1, (0.4,), (0.2,))


def loader(dataset=None, batch_size=8, pipelines=BLURRED, **options):
    views = Views(pipelines) if pipelines else None
    return data.loader(dataset or toy(), "train", batch_size, views=views, **options)


def normalised(x):
    return (x - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)


def test_a_batch_is_solo_learns_with_views_normalised_after_augmentation():
    batches = loader(seed=3)
    epoch = epoch_of(batches, 4)
    assert len(epoch) == 6
    for indices, crops, labels in epoch:
        assert indices.dtype == labels.dtype == torch.int64
        assert torch.equal(indices, labels)
        x = batches.images.images[indices].float() / 255
        uniforms = batches.views.uniforms(indices, seed=3, epoch=4)
        for view, u, crop in zip(batches.views.per_view, uniforms, crops, strict=True):
            assert crop.dtype == torch.float32
            torch.testing.assert_close(crop, normalised(view(x, u)), atol=2e-6, rtol=0)
    seen = torch.cat([indices for indices, _, _ in epoch])
    assert len(seen.unique()) == 48
    assert not torch.equal(seen, seen.sort().values)


def test_validation_is_every_image_once_in_order():
    batches = loader(pipelines=())
    x, labels = (torch.cat(parts) for parts in zip(*batches, strict=True))
    assert len(batches) == 7
    assert labels.tolist() == list(range(50))
    torch.testing.assert_close(x, normalised(batches.images.images / 255), atol=2e-6, rtol=0)


def test_a_sample_gets_the_same_views_however_it_is_loaded():
    want = by_sample(epoch_of(loader(drop_last=False), 2))
    assert len(want) == 50
    got = by_sample(epoch_of(loader(batch_size=17, drop_last=False), 2))
    assert all(torch.equal(views, want[index]) for index, views in got.items())
    for other in (epoch_of(loader(drop_last=False, seed=1), 2), epoch_of(loader(), 3)):
        got = by_sample(other)
        assert not any(torch.equal(views, want[index]) for index, views in got.items())
    assert not any(torch.equal(first, second) for first, second in want.values())


def test_the_order_is_the_seeds_and_the_epochs():
    def order(epoch, seed=0):
        batches = epoch_of(loader(pipelines=[Pipeline(size=4, num_crops=1)], seed=seed), epoch)
        return tuple(torch.cat([indices for indices, _, _ in batches]).tolist())

    assert order(1) == order(1)
    assert len({order(epoch, seed) for epoch in (0, 1, 2) for seed in (0, 1, 2)}) == 9


@pytest.mark.parametrize("world", [2, 5])
def test_processes_together_see_what_one_sees(world):
    ranks = [epoch_of(loader(batch_size=4), 0, rank, world) for rank in range(world)]
    together = [
        (torch.cat(i), [torch.cat(view) for view in zip(*crops)], torch.cat(labels))
        for i, crops, labels in (zip(*step) for step in zip(*ranks, strict=True))
    ]
    same(together, epoch_of(loader(batch_size=4 * world)))


@pytest.mark.parametrize("n", [5, 33])
@pytest.mark.parametrize("batch_size", [4, 64])
@pytest.mark.parametrize("world", [1, 5])
def test_validation_is_shared_out_in_equal_numbers_of_batches(n, batch_size, world):
    plain = loader(grey(n), batch_size, pipelines=())
    ranks = [epoch_of(plain, 0, rank, world) for rank in range(world)]
    batches = [[labels for _, labels in seen] for seen in ranks]
    assert {len(b) for b in batches} <= {n // (batch_size * world), -(-n // (batch_size * world))}
    sizes = [len(labels) for b in batches for labels in b]
    assert min(sizes) >= 1
    assert max(sizes) <= batch_size + 1
    steps = [labels for step in zip(*batches, strict=True) for labels in step]
    assert torch.cat(steps).tolist() == list(range(n))


@pytest.mark.parametrize("n", [8, 15, 17])
@pytest.mark.parametrize("world", [1, 4])
def test_training_without_dropping_leaves_no_batch_of_one(n, world):
    whole = loader(toy(n), 2, drop_last=False)
    ranks = [epoch_of(whole, 0, rank, world) for rank in range(world)]
    batches = [[indices for indices, _, _ in seen] for seen in ranks]
    assert len({len(b) for b in batches}) == 1
    assert min(len(indices) for b in batches for indices in b) >= 2
    seen = torch.cat([indices for b in batches for indices in b])
    assert seen.sort().values.tolist() == list(range(n))


def test_grey_images_are_expanded_when_finished():
    narrow, wide = list(loader(grey())), list(loader(grey(), expand_channels=3))
    for (_, crops, _), (_, expanded, _) in zip(narrow, wide, strict=True):
        for crop, three in zip(crops, expanded, strict=True):
            assert torch.equal(three, crop.expand(8, 3, 8, 8))
    x, _ = next(iter(loader(grey(), pipelines=(), expand_channels=3)))
    assert x.shape == (8, 3, 8, 8)
    with pytest.raises(ValueError, match=r"takes 4 channels: give images of 1 or 4 channels"):
        loader(expand_channels=4)


@pytest.mark.parametrize(
    ("n", "batch_size", "world", "pipelines", "says"),
    [
        (50, 1, 1, BLURRED, "batch_size must be"),
        (50, 26, 2, BLURRED, "needs 52 images"),
        (5, 4, 8, (), "only 5: lower batch_size"),
    ],
)
def test_a_batch_size_that_cannot_be_is_refused(n, batch_size, world, pipelines, says):
    with pytest.raises(ValueError, match=says):
        epoch_of(loader(toy(n), batch_size, pipelines), world=world)
