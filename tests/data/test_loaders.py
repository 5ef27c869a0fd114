"""Batches of images in memory: order, views, shares of processes, and what is refused."""

import pytest
import torch
from support.image_files import epoch_of
from support.second_device import DEVICE
from torch.utils._pytree import tree_map

from rdm_solo import data
from rdm_solo.data import Dataset, Images, Pipeline, Views

MEAN = (0.1, 0.5, 0.7)
STD = (0.2, 0.3, 0.4)
BLURRED = [Pipeline(size=8, blur=0.5)]


def loader(n=50, batch_size=8, pipelines=BLURRED, channels=3, **options):
    """Return a loader of ``n`` images whose label is their index; without pipelines, clean ones."""
    source = data.synthetic(n, 1, 8, channels, num_classes=2)
    labels = torch.arange(n)
    images = Images(source.train.images, labels)
    mean = MEAN[:channels]
    std = STD[:channels]
    dataset = Dataset("toy", images, None, n, mean, std)
    if pipelines:
        options["views"] = Views(pipelines)
    return data.loader(dataset, "train", batch_size, **options)


def assert_close(actual, expected):
    """Allow a few roundings of a view, divided by the smallest ``STD``."""
    torch.testing.assert_close(actual, expected, atol=2e-6, rtol=0)


def normalised(x):
    channels = x.shape[1]
    moments = torch.tensor([MEAN, STD])
    mean, std = moments[:, :channels, None, None]
    return (x - mean) / std


def test_a_batch_is_solo_learns_with_views_normalised_after_augmentation():
    batches = loader(seed=3)
    epoch = epoch_of(batches, 4)
    assert len(epoch) == 6
    for indices, crops, labels in epoch:
        assert torch.equal(indices, labels)
        x = batches.images.images[indices] / 255
        views = batches.views
        uniforms = views.uniforms(indices, seed=3, epoch=4)
        (stack,) = views(x, uniforms)
        for view, crop in zip(stack, crops, strict=True):
            assert_close(crop, normalised(view))
    indices, _, _ = zip(*epoch)
    samples = torch.cat(indices)
    assert len(samples.unique()) == 48


@pytest.mark.parametrize("channels", [1, 3])
def test_validation_is_every_image_once_in_order(channels):
    """Grey images are expanded once they are normalised."""
    batches = loader(pipelines=(), channels=channels, expand_channels=3)
    images, labels = zip(*batches, strict=True)
    assert len(images) == len(batches) == 7
    assert torch.equal(torch.cat(labels), torch.arange(50))
    actual = torch.cat(images)
    expected = normalised(batches.images.images / 255)
    expected = expected.expand_as(actual)
    assert_close(actual, expected)


def test_order_and_views_are_the_seeds_and_the_epochs_however_samples_are_loaded():
    orders = []

    def views(epoch=2, **options):
        """Return the views of all samples in the order of their indices."""
        batches = loader(drop_last=False, **options)
        indices, crops, _ = zip(*epoch_of(batches, epoch))
        order = torch.cat(indices).argsort()
        orders.append(order.tolist())
        return [torch.cat(view)[order] for view in zip(*crops)]

    first, second = views()
    assert len(first) == 50
    other_seed, _ = views(seed=1)
    other_epoch, _ = views(epoch=3)
    for other in (second, other_seed, other_epoch):
        different_pixels = (first != other).flatten(1)
        assert different_pixels.any(1).all()
    assert_close(views(batch_size=17), [first, second])
    expected, *others, same = orders
    assert same == expected
    assert expected not in others


PIPELINES = [Pipeline(size=12, num_crops=1), Pipeline(size=8, blur=0.5), Pipeline(size=4)]


def batches_on(device, most_values, channels):
    """Return the batches of an epoch, and how many images each call of the views got."""
    batches = loader(pipelines=PIPELINES, channels=1, drop_last=False, device=device)
    batches.channels = channels  # as with expand_channels
    compute = Views.__call__
    calls = []

    def counted(views, x, u):
        calls.append(len(x))
        return compute(views, x, u)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rdm_solo.data.loaders.CALL_VALUES", most_values)
        patch.setattr(Views, "__call__", counted)
        on_device = epoch_of(batches)
    on_host = [tree_map(torch.Tensor.cpu, batch) for batch in on_device]
    return on_host, calls


@pytest.mark.parametrize("channels", [1, 3])
def test_a_device_augments_several_batches_in_one_call(on_second_device, channels):
    """A sample's five views count 144 + 2 x 64 + 2 x 64 values; the smallest as an image.

    The epoch's batches are compared once all are loaded, so none may overwrite an earlier one.
    """
    one_by_one = [8] * 6 + [2]
    expected, calls = batches_on("cpu", 10**9, channels)
    assert calls == one_by_one
    batch = 8 * (144 + 2 * 64 + 2 * 64)
    together = [24, 24, 2]
    sizes = {1: one_by_one, 3 * batch: together, 4 * batch - 1: together}
    for most_values, expected_calls in sizes.items():
        actual, calls = on_second_device(batches_on, DEVICE, most_values, channels)
        assert calls == expected_calls
        assert_close(actual, expected)


@pytest.mark.parametrize("world", [2, 5])
def test_processes_together_see_what_one_sees(world):
    alone = epoch_of(loader(batch_size=4 * world))
    batches = loader(batch_size=4)
    ranks = [epoch_of(batches, 0, rank, world) for rank in range(world)]
    for batch, *shares in zip(alone, *ranks, strict=True):
        expected, _, _ = batch
        indices, _, _ = zip(*shares)
        assert torch.equal(torch.cat(indices), expected)


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
    full_steps = n // (batch_size * world)
    assert full_steps <= len(ranks[0]) <= full_steps + 1
    order = []
    for step in zip(*ranks, strict=True):
        for *_, labels in step:
            assert smallest <= len(labels) <= batch_size + smallest
            order += labels.tolist()
    if pipelines:
        order.sort()
    assert order == list(range(n))


def test_images_that_do_not_fit_the_backbone_are_refused():
    with pytest.raises(ValueError, match="4 channels"):
        loader(expand_channels=4)


@pytest.mark.parametrize(
    ("n", "batch_size", "world", "pipelines"),
    [
        (50, 1, 1, BLURRED),
        (50, 26, 2, BLURRED),
        (5, 4, 8, ()),
    ],
)
def test_a_batch_size_that_cannot_be_is_refused(n, batch_size, world, pipelines):
    with pytest.raises(ValueError, match=f"batch_size.*{batch_size}"):
        epoch_of(loader(n, batch_size, pipelines), world=world)
