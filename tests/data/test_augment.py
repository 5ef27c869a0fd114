"""Views against torchvision: the same parameters give the same images, and the same statistics."""

import hashlib
import itertools
import math

import pytest
import torch
from scipy import stats
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as tv

from rdm_solo.data import Pipeline, Views, draws, operations, views
from rdm_solo.data.draws import DRAWS, random_rows

# float32 images in [0, 1]. Measured worst differences from torchvision over larger samples of the
# cases below: resize 3.2e-6, rotation 2.4e-6, hue 1.0e-6, jitter 1.4e-6, blur 7e-7, a single blend
# 1.8e-7. The first two are rounding of coordinates times a gradient of up to 1 a pixel.
CLOSE = 1e-5
SIGNIFICANCE = 1e-4  # of each statistical test; seeds are fixed, so none of them flickers


def images(n=24, channels=3, height=32, width=32, seed=0):
    return torch.rand(n, channels, height, width, generator=draws.generator(seed, "images"))


def uniforms(n, seed=0):
    return torch.rand(n, DRAWS, generator=draws.generator(seed, "uniforms"))


@pytest.mark.parametrize("size", [32, 40, 20, 7])
@pytest.mark.parametrize("shape", [(32, 32), (24, 37)])
def test_crop_equals_torchvision(shape, size):
    x = images(height=shape[0], width=shape[1])
    boxes = operations.crop_boxes(uniforms(len(x)), *shape, (0.05, 1.0), (3 / 4, 4 / 3))
    flip = torch.arange(len(x)) % 2 == 0
    got = operations.crop_resize(x, boxes, size, flip)
    for i, (top, left, height, width) in enumerate(boxes.tolist()):
        want = tv.resized_crop(x[i], top, left, height, width, [size, size], antialias=True)
        want = want.flip(-1) if flip[i] else want
        torch.testing.assert_close(got[i], want, atol=CLOSE, rtol=0)


@pytest.mark.parametrize("angle", [-0.4, 1.0])
def test_rotation_equals_torchvision_where_it_sees_the_image(angle):
    x = images(4)
    whole = torch.tensor([[0, 0, 32, 32]]).expand(4, 4)
    got = operations.crop_resize(x, whole, 32, angle=torch.full((4,), angle))
    degrees = math.degrees(angle)
    want = tv.rotate(x, degrees, v2.InterpolationMode.BILINEAR)
    seen = tv.rotate(torch.ones_like(x), degrees, v2.InterpolationMode.BILINEAR) > 0.999
    assert seen.float().mean() > 0.7
    torch.testing.assert_close(got[seen], want[seen], atol=CLOSE, rtol=0)
    assert got.min() >= 0
    assert not (got == 0).any()  # corners repeat the edge, none turns black


def test_flip_comes_before_rotation_and_after_shrinking():
    x, flip, angle = images(4), torch.tensor([True] * 4), torch.full((4,), 0.3)
    for size in (32, 16):
        boxes = torch.tensor([[2, 4, 20, 24]]).expand(4, 4)
        got = operations.crop_resize(x, boxes, size, flip, angle)
        mirrored = boxes.clone()
        mirrored[:, 1] = 32 - 4 - 24
        want = operations.crop_resize(x.flip(-1), mirrored, size, None, angle)
        torch.testing.assert_close(got, want, atol=CLOSE, rtol=0)


@pytest.mark.parametrize("shift", [-0.5, -0.31, 0.05, 1 / 3])
def test_hue_equals_torchvision(shift):
    """Compare on noise, and on every corner, edge and tie of the colour cube."""
    levels = torch.tensor([0.0, 0.25, 0.5, 1.0])
    cube = torch.cartesian_prod(levels, levels, levels).T.reshape(1, 3, 8, 8)
    x = torch.cat((images(6, height=8, width=8), cube))
    got = operations.shift_hue(x.clone(), torch.full((len(x),), shift))
    torch.testing.assert_close(got, tv.adjust_hue(x, shift), atol=CLOSE, rtol=0)


@pytest.mark.parametrize("channels", [1, 3])
def test_jitter_in_every_order_equals_torchvision(channels):
    order = torch.tensor(list(itertools.permutations(range(4))))
    x = images(len(order), channels)
    factors = 1.8 * torch.rand(len(order), 4, generator=draws.generator("factors"))
    factors[:, 3] = factors[:, 3] / 2 - 0.45
    by_torchvision = (tv.adjust_brightness, tv.adjust_contrast, tv.adjust_saturation, tv.adjust_hue)
    got = operations.color_jitter(x, factors, order)
    for i in range(len(order)):
        want = x[i]
        for operation in order[i].tolist():
            want = by_torchvision[operation](want, factors[i, operation].item())
        torch.testing.assert_close(got[i], want, atol=CLOSE, rtol=0)
    assert not torch.allclose(
        got[0], operations.color_jitter(x, factors, order.flip(0))[0], atol=1e-3
    )


@pytest.mark.parametrize(("size", "radius"), [(32, 8), (8, 7), (32, 1)])
def test_blur_equals_torchvision(size, radius):
    x, sigma = images(5, height=size, width=size), torch.tensor([0.1, 0.4, 1.0, 1.5, 2.0])
    got = operations.blur(x, sigma, radius)
    for i, s in enumerate(sigma.tolist()):
        want = tv.gaussian_blur(x[i], [2 * radius + 1] * 2, [s, s])
        torch.testing.assert_close(got[i], want, atol=2e-6, rtol=0)


def test_operations_come_in_solo_learns_order():
    """Compare the whole pipeline with its parts: crop, jitter, grey, blur, solarise."""
    pipeline = Pipeline(size=32, jitter=1.0, grey=1.0, blur=1.0, solarize=1.0)
    x, u = images(8), uniforms(8)
    drawn = pipeline.parameters(u, 32, 32)
    got = pipeline(x, u)
    for i in range(8):
        top, left, height, width = drawn.boxes[i].tolist()
        want = tv.resized_crop(x[i], top, left, height, width, [32, 32], antialias=True)
        want = want.flip(-1) if drawn.flip[i] else want
        want = operations.color_jitter(want[None], drawn.factors[i, None], drawn.order[i, None])[0]
        want = tv.rgb_to_grayscale(want, 3)
        want = tv.gaussian_blur(want, [17, 17], [drawn.sigma[i].item()] * 2)
        near = (want - 0.5).abs() < 2 * CLOSE  # either side of the threshold is right
        want = tv.solarize(want, 0.5)
        torch.testing.assert_close(got[i][~near], want[~near], atol=2 * CLOSE, rtol=0)


def torchvision_crops(n, height, width, scale, ratio):
    torch.manual_seed(1)
    transform, image = v2.RandomResizedCrop(8, scale, ratio), torch.empty(3, height, width)
    keys = ("top", "left", "height", "width")
    drawn = (transform.make_params([image]) for _ in range(n))
    return torch.tensor([[params[key] for key in keys] for params in drawn])


def test_boxes_are_distributed_as_torchvisions():
    n, height, width, scale, ratio = 1500, 40, 24, (0.08, 1.0), (0.5, 1.2)
    got = operations.crop_boxes(uniforms(n), height, width, scale, ratio).double()
    want = torchvision_crops(n, height, width, scale, ratio).double()
    assert (got[:, :2] + got[:, 2:] <= torch.tensor([height, width])).all()
    for describe in (
        lambda b: b[:, 2] * b[:, 3],
        lambda b: b[:, 3] / b[:, 2],
        lambda b: b[:, 0],
        lambda b: b[:, 1],
        lambda b: b[:, 0] + b[:, 2],
        lambda b: b[:, 1] + b[:, 3],
    ):
        assert stats.ks_2samp(describe(got), describe(want)).pvalue > SIGNIFICANCE


def test_a_box_that_never_fits_is_the_largest_central_one():
    for height, width in ((10, 100), (100, 10), (7, 90)):
        got = operations.crop_boxes(uniforms(3), height, width, (1.0, 1.0), (3 / 4, 4 / 3))
        want = torchvision_crops(1, height, width, (1.0, 1.0), (3 / 4, 4 / 3))
        assert torch.equal(got, want.expand(3, 4))


def test_factors_and_order_are_distributed_as_torchvisions():
    n = 2000
    pipeline = Pipeline(size=8, brightness=0.4, contrast=1.5, saturation=0.2, hue=0.1)
    drawn = pipeline.parameters(uniforms(n), 8, 8)
    torch.manual_seed(2)
    transform = v2.ColorJitter(0.4, 1.5, 0.2, 0.1)
    want = [transform.make_params([]) for _ in range(n)]
    for i, name in enumerate(("brightness", "contrast", "saturation", "hue")):
        theirs = [params[f"{name}_factor"] for params in want]
        assert stats.ks_2samp(drawn.factors[:, i], theirs).pvalue > SIGNIFICANCE
    digits = torch.tensor([64, 16, 4, 1])
    codes = (drawn.order * digits).sum(1)
    _, counts = codes.unique(return_counts=True)
    assert len(counts) == 24
    assert stats.chisquare(counts).pvalue > SIGNIFICANCE
    # Factors and order are independent of each other and of what else is drawn.
    place = drawn.boxes[:, 0].double()
    columns = torch.stack((*drawn.factors.T, codes.double(), drawn.sigma, place))
    correlation = torch.corrcoef(columns) - torch.eye(len(columns))
    assert correlation.abs().max() < 5 / math.sqrt(n)


def test_probabilities_are_those_of_the_options():
    n = 4000
    options = {"flip": 0.5, "jitter": 0.8, "grey": 0.2, "blur": 0.3, "solarize": 0.1}
    drawn = Pipeline(size=8, rotate=0.1, **options).parameters(uniforms(n), 8, 8)
    for name, probability in options.items():
        hits = int(getattr(drawn, name).sum())
        assert stats.binomtest(hits, n, probability).pvalue > SIGNIFICANCE, name
    masks = torch.stack([getattr(drawn, name).double() for name in options])
    assert (torch.corrcoef(masks) - torch.eye(len(masks))).abs().max() < 5 / math.sqrt(n)
    assert stats.kstest(drawn.sigma, stats.uniform(0.1, 1.9).cdf).pvalue > SIGNIFICANCE
    assert stats.kstest(drawn.angle, stats.uniform(-0.1, 0.2).cdf).pvalue > SIGNIFICANCE


def split_mix(state: int) -> int:
    """Return the finaliser of SplitMix64 (Steele, Lea and Flood, 2014), in Python's integers."""
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    state = (state ^ (state >> 27)) * 0x94D049BB133111EB % 2**64
    return state ^ (state >> 31)


def test_random_rows_are_split_mix():
    digest = hashlib.blake2b(repr((3, "a")).encode(), digest_size=8).digest()
    start, step = int.from_bytes(digest, "little"), 0x9E3779B97F4A7C15
    for row, numbers in zip((0, 5, 10**6), random_rows([0, 5, 10**6], 3, "a").tolist()):
        states = [start + (row * DRAWS + column + 1) * step for column in range(DRAWS)]
        assert numbers == [(split_mix(state % 2**64) >> 40) / 2**24 for state in states]


EVERYTHING = {"blur": 0.5, "solarize": 0.3}


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("options", [EVERYTHING, EVERYTHING | {"rotate": 0.2}, {"size": 12}])
def test_a_view_has_the_same_bits_in_any_batch(channels, options, monkeypatch):
    monkeypatch.setattr(views, "CHUNK_VALUES", 128 * 3 * 32 * 32)
    pipeline = Pipeline(**{"size": 32} | options)
    n = 300  # more than a piece
    x, u = images(n, channels), uniforms(n)
    want = pipeline(x, u)
    assert torch.equal(x, images(n, channels)), "the input is unchanged"
    shuffled = torch.randperm(n, generator=draws.generator("shuffle"))
    assert torch.equal(pipeline(x[shuffled], u[shuffled]), want[shuffled])
    for rows in (slice(0, 1), slice(5, 8), slice(10, 75), slice(290, 300)):
        assert torch.equal(pipeline(x[rows], u[rows]), want[rows])


def test_uniform_numbers_belong_to_seed_epoch_view_and_sample():
    """Compare with other samples and views present."""
    some = Views([Pipeline(size=32)])
    more = Views([Pipeline(size=32, num_crops=1), Pipeline(size=32, blur=1.0, num_crops=3)])
    keys = list(itertools.product((0, 1, 2), (0, 1, 2)))
    rows = torch.stack([u for key in keys for u in some.uniforms(range(7), *key)])
    assert len(rows.flatten(0, 1).unique(dim=0)) == 18 * 7
    assert torch.equal(more.uniforms(torch.tensor([5, 2]), 1, 2)[1], some.uniforms([5, 2], 1, 2)[1])


@pytest.mark.parametrize("option", [{"size": 1}, {"hue": 0.6}, {"crop_scale": (0.5, 1.5)}])
def test_an_option_out_of_range_is_named(option):
    with pytest.raises(ValueError, match=rf"^{next(iter(option))}\b.* must be .*, got "):
        Pipeline(**{"size": 32} | option)


@pytest.mark.parametrize("pipelines", [[], [{"size": 32}], [Pipeline(size=16), Pipeline(size=32)]])
def test_views_refuse_what_is_no_list_of_pipelines_and_small_ones_first(pipelines):
    with pytest.raises(ValueError, match=r"^dataset\.views\.pipelines (must be a list|has sizes)"):
        Views(pipelines)
