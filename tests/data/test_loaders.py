"""Batches of images in memory: order, views, shares of processes, and what is refused."""

import pytest
import torch
from support.image_files import assert_same, by_sample, epoch_of

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


def labels_by_rank(batches, world):
    """Return the labels of each process's batches; a label is its image's index."""
    ranks = [epoch_of(batches, 0, rank, world) for rank in range(world)]
    return [[labels for *_, labels in rank] for rank in ranks]


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
            torch.testing.assert_close(crop, normalised(view(x, u)), atol=2e-6, rtol=0)
    order = torch.cat([indices for indices, _, _ in epoch])
    assert len(order.unique()) == 48
    assert not torch.equal(order, order.sort().values)


def test_validation_is_every_image_once_in_order():
    batches = loader(pipelines=())
    images, labels = zip(*batches, strict=True)
    assert len(images) == len(batches) == 7
    assert torch.cat(labels).tolist() == list(range(50))
    expected = normalised(batches.images.images / 255)
    torch.testing.assert_close(torch.cat(images), expected, atol=2e-6, rtol=0)


def test_a_sample_gets_the_same_views_however_it_is_loaded():
    def views(epoch=2, **options):
        return by_sample(epoch_of(loader(drop_last=False, **options), epoch))

    expected = views()
    assert len(expected) == 50
    assert_same(views(batch_size=17), expected)
    for others in (views(seed=1), views(epoch=3)):
        assert not any(torch.equal(others[index], expected[index]) for index in range(50))
    assert not any(torch.equal(first, second) for first, second in expected.values())


def test_the_order_is_the_seeds_and_the_epochs():
    def order(epoch, seed=0):
        batches = epoch_of(loader(pipelines=[Pipeline(size=4, num_crops=1)], seed=seed), epoch)
        return tuple(torch.cat([indices for indices, _, _ in batches]).tolist())

    assert order(1) == order(1)
    assert len({order(epoch, seed) for epoch in range(3) for seed in range(3)}) == 9


@pytest.mark.parametrize("world", [2, 5])
def test_processes_together_see_what_one_sees(world):
    ranks = [epoch_of(loader(batch_size=4), 0, rank, world) for rank in range(world)]
    expected = epoch_of(loader(batch_size=4 * world))
    for *parts, (indices, crops, labels) in zip(*ranks, expected, strict=True):
        index_parts, crop_parts, label_parts = zip(*parts)
        assert torch.equal(torch.cat(index_parts), indices)
        assert torch.equal(torch.cat(label_parts), labels)
        assert_same([torch.cat(view) for view in zip(*crop_parts)], crops)


@pytest.mark.parametrize("n", [5, 33])
@pytest.mark.parametrize("batch_size", [4, 64])
@pytest.mark.parametrize("world", [1, 5])
def test_validation_is_shared_out_in_equal_numbers_of_batches(n, batch_size, world):
    ranks = labels_by_rank(loader(grey(n), batch_size, pipelines=()), world)
    full_steps, rest = divmod(n, batch_size * world)
    order = []
    for step in zip(*ranks, strict=True):
        for labels in step:
            assert 1 <= len(labels) <= batch_size + 1
            order += labels.tolist()
    assert order == list(range(n))
    assert len(ranks[0]) in (full_steps, full_steps + bool(rest))


@pytest.mark.parametrize("n", [8, 15, 17])
@pytest.mark.parametrize("world", [1, 4])
def test_training_without_dropping_leaves_no_batch_of_one(n, world):
    order = []
    for step in zip(*labels_by_rank(loader(toy(n), 2, drop_last=False), world), strict=True):
        for labels in step:
            assert len(labels) >= 2
            order += labels.tolist()
    assert sorted(order) == list(range(n))


def test_grey_images_are_expanded_when_finished():
    _, views, _ = next(iter(loader(grey())))
    _, expanded, _ = next(iter(loader(grey(), expand_channels=3)))
    assert_same(expanded, [view.expand(8, 3, 8, 8) for view in views])
    x, _ = next(iter(loader(grey(), pipelines=(), expand_channels=3)))
    assert x.shape == (8, 3, 8, 8)


def test_images_that_do_not_fit_the_backbone_are_refused():
    with pytest.raises(ValueError, match="4 channels"):
        loader(expand_channels=4)


@pytest.mark.parametrize(
    ("n", "batch_size", "world", "pipelines"),
    [(50, 1, 1, BLURRED), (50, 26, 2, BLURRED), (5, 4, 8, ())],
)
def test_a_batch_size_that_cannot_be_is_refused(n, batch_size, world, pipelines):
    with pytest.raises(ValueError, match=f"batch_size.*{batch_size}"):
        epoch_of(loader(toy(n), batch_size, pipelines), world=world)
