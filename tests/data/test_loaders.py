"""Batches of images in memory: order, views, shares of processes, and what is refused."""

import pytest
import torch
from support.image_files import assert_same, by_sample, epoch_of

from rdm_solo import data
from rdm_solo.data import Dataset, Images, Pipeline, Views

MEAN = (0.1, 0.5, 0.7)
STD = (0.2, 0.3, 0.4)
BLURRED = [Pipeline(size=8, blur=0.5)]


def loader(n=50, batch_size=8, pipelines=BLURRED, channels=3, **options):
    """Return a loader of ``n`` images whose label is their index; without pipelines, clean ones."""
    images = data.synthetic(n, 1, 8, channels, num_classes=2).train.images
    parts = Images(images, torch.arange(n)), None
    dataset = Dataset("toy", *parts, n, MEAN[:channels], STD[:channels])
    views = Views(pipelines) if pipelines else None
    return data.loader(dataset, "train", batch_size, views=views, **options)


def normalised(x):
    mean = torch.tensor(MEAN).view(3, 1, 1)
    std = torch.tensor(STD).view(3, 1, 1)
    return (x - mean) / std


def test_a_batch_is_solo_learns_with_views_normalised_after_augmentation():
    batches = loader(seed=3)
    epoch = epoch_of(batches, 4)
    assert len(epoch) == 6
    for indices, crops, labels in epoch:
        assert torch.equal(indices, labels)
        x = batches.images.images[indices] / 255
        uniforms = batches.views.uniforms(indices, seed=3, epoch=4)
        for view, u, crop in zip(batches.views.per_view, uniforms, crops, strict=True):
            torch.testing.assert_close(crop, normalised(view(x, u)), atol=2e-6, rtol=0)
    order = torch.cat([indices for indices, _, _ in epoch])
    assert len(order.unique()) == 48


def test_validation_is_every_image_once_in_order():
    batches = loader(pipelines=())
    images, labels = zip(*batches, strict=True)
    assert len(images) == len(batches) == 7
    assert torch.cat(labels).tolist() == list(range(50))
    expected = normalised(batches.images.images / 255)
    torch.testing.assert_close(torch.cat(images), expected, atol=2e-6, rtol=0)


def test_a_sample_gets_the_same_views_however_it_is_loaded():
    def views(epoch=2, **options):
        batches = loader(drop_last=False, **options)
        return by_sample(epoch_of(batches, epoch))

    expected = views()
    assert len(expected) == 50
    assert_same(views(batch_size=17), expected)
    other_seed = views(seed=1)
    other_epoch = views(epoch=3)
    for index, (first, second) in expected.items():
        assert not torch.equal(first, second)
        assert not torch.equal(other_seed[index][0], first)
        assert not torch.equal(other_epoch[index][0], first)


def test_the_order_is_the_seeds_and_the_epochs():
    def order(epoch, seed):
        batches = loader(pipelines=[Pipeline(size=4, num_crops=1)], seed=seed)
        indices = [samples for samples, _, _ in epoch_of(batches, epoch)]
        return tuple(torch.cat(indices).tolist())

    assert order(1, 0) == order(1, 0)
    orders = {order(epoch, seed) for epoch in range(3) for seed in range(3)}
    assert len(orders) == 9


@pytest.mark.parametrize("world", [2, 5])
def test_processes_together_see_what_one_sees(world):
    ranks = [epoch_of(loader(batch_size=4), 0, rank, world) for rank in range(world)]
    expected = epoch_of(loader(batch_size=4 * world))
    for *parts, (indices, crops, labels) in zip(*ranks, expected, strict=True):
        index_parts, crop_parts, label_parts = zip(*parts)
        assert torch.equal(torch.cat(index_parts), indices)
        assert torch.equal(torch.cat(label_parts), labels)
        assert_same([torch.cat(view) for view in zip(*crop_parts)], crops)


@pytest.mark.parametrize(
    ("n", "batch_size", "pipelines", "smallest"),
    [
        (5, 4, (), 1),
        (33, 4, (), 1),
        (33, 64, (), 1),
        (8, 2, BLURRED, 2),
        (15, 2, BLURRED, 2),
        (17, 2, BLURRED, 2),
    ],
)
@pytest.mark.parametrize("world", [1, 4])
def test_every_process_gets_an_equal_share_of_every_step(n, batch_size, pipelines, smallest, world):
    """Batch norm needs two images in training, so a rest that is too short joins a batch."""
    batches = loader(n, batch_size, pipelines, channels=1, drop_last=False)
    ranks = [epoch_of(batches, 0, rank, world) for rank in range(world)]
    full_steps, rest = divmod(n, batch_size * world)
    assert len(ranks[0]) in (full_steps, full_steps + bool(rest))
    order = []
    for step in zip(*ranks, strict=True):
        for *_, labels in step:
            assert smallest <= len(labels) < batch_size + smallest + 1
            order += labels.tolist()
    if pipelines:
        order.sort()
    assert order == list(range(n))


@pytest.mark.parametrize("pipelines", [BLURRED, ()])
def test_grey_images_are_expanded_when_finished(pipelines):
    options = {"channels": 1, "pipelines": pipelines}
    *_, grey, _ = next(iter(loader(**options)))
    *_, expanded, _ = next(iter(loader(**options, expand_channels=3)))
    for view, actual in zip(grey, expanded, strict=True):
        assert torch.equal(actual, view.expand_as(actual))
        assert actual.shape[-3] == 3


@pytest.mark.parametrize(
    ("n", "batch_size", "world", "pipelines"),
    [(50, 1, 1, BLURRED), (50, 26, 2, BLURRED), (5, 4, 8, ())],
)
def test_a_batch_size_that_cannot_be_is_refused(n, batch_size, world, pipelines):
    with pytest.raises(ValueError, match=f"batch_size.*{batch_size}"):
        epoch_of(loader(n, batch_size, pipelines), world=world)
