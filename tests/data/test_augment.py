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


def images(n=24, channels=3, height=32, width=32):
    return torch.rand(n, channels, height, width, generator=draws.generator("images"))


def uniforms(n):
    return torch.rand(n, DRAWS, generator=draws.generator("uniforms"))


def assert_close(actual, expected, atol=CLOSE):
    torch.testing.assert_close(actual, expected, atol=atol, rtol=0)


@pytest.mark.parametrize("size", [32, 40, 20, 7])
@pytest.mark.parametrize(("height", "width"), [(32, 32), (24, 37)])
def test_crop_equals_torchvision(height, width, size):
    x = images(height=height, width=width)
    boxes = operations.crop_boxes(uniforms(len(x)), height, width, (0.05, 1.0), (3 / 4, 4 / 3))
    actual = operations.crop_resize(x, boxes, size)
    for image, box, view in zip(x, boxes.tolist(), actual):
        assert_close(view, tv.resized_crop(image, *box, [size, size], antialias=True))


@pytest.mark.parametrize("angle", [-0.4, 1.0])
def test_rotation_equals_torchvision_where_it_sees_the_image(angle):
    def rotate(x):
        return tv.rotate(x, math.degrees(angle), v2.InterpolationMode.BILINEAR)

    x = images(4)
    actual = operations.rotate(x, torch.full((4,), angle))
    visible = rotate(torch.ones_like(x)) > 0.999
    assert visible.float().mean() > 0.7
    assert_close(actual[visible], rotate(x)[visible])
    assert (actual > 0).all()  # corners repeat the edge, none turns black


@pytest.mark.parametrize("size", [32, 16])
def test_flip_comes_before_rotation(size):
    options = {"rotate": 0.3, "crop_scale": (1, 1), "crop_ratio": (1, 1), "jitter": 0, "grey": 0}
    x, u = images(4), uniforms(4)
    expected = Pipeline(size, flip=0, **options)(x.flip(3), u)
    assert_close(Pipeline(size, flip=1, **options)(x, u), expected)


@pytest.mark.parametrize("shift", [-0.5, -0.31, 0.05, 1 / 3])
def test_hue_equals_torchvision(shift):
    """Compare on noise, and on every corner, edge and tie of the colour cube."""
    levels = torch.tensor([0.0, 0.25, 0.5, 1.0])
    cube = torch.cartesian_prod(levels, levels, levels).T.reshape(1, 3, 8, 8)
    x = torch.cat((images(6, height=8, width=8), cube))
    actual = operations.shift_hue(x.clone(), torch.full((7,), shift))
    assert_close(actual, tv.adjust_hue(x, shift))


@pytest.mark.parametrize("channels", [1, 3])
def test_jitter_in_every_order_equals_torchvision(channels):
    adjust = (tv.adjust_brightness, tv.adjust_contrast, tv.adjust_saturation, tv.adjust_hue)
    order = torch.tensor(list(itertools.permutations(range(4))))
    x = images(24, channels)
    factors = 1.8 * torch.rand(24, 4, generator=draws.generator("factors"))
    factors[:, 3] = factors[:, 3] / 2 - 0.45
    actual = operations.color_jitter(x, factors, order)
    for i, expected in enumerate(x):
        for operation in order[i].tolist():
            expected = adjust[operation](expected, factors[i, operation].item())
        assert_close(actual[i], expected)
    reverse = operations.color_jitter(x, factors, order.flip(0))
    assert not torch.allclose(actual[0], reverse[0], atol=1e-3)


@pytest.mark.parametrize(("size", "radius"), [(32, 8), (8, 7), (32, 1)])
def test_blur_equals_torchvision(size, radius):
    x = images(5, height=size, width=size)
    sigmas = torch.tensor([0.1, 0.4, 1.0, 1.5, 2.0])
    actual = operations.blur(x, sigmas, radius)
    for image, sigma, view in zip(x, sigmas.tolist(), actual):
        kernel_size = [2 * radius + 1] * 2
        assert_close(view, tv.gaussian_blur(image, kernel_size, [sigma, sigma]), atol=2e-6)


def test_operations_come_in_solo_learns_order():
    pipeline = Pipeline(size=32, jitter=1.0, grey=1.0, blur=1.0, solarize=1.0)
    x, u = images(8), uniforms(8)
    boxes = pipeline.boxes(u, 32, 32).tolist()
    params = pipeline.parameters(u)
    jittered = torch.empty_like(x)
    for i, image in enumerate(x):
        crop = tv.resized_crop(image, *boxes[i], [32, 32], antialias=True)
        jittered[i] = tv.horizontal_flip(crop) if params.flip[i] else crop
    jittered = operations.color_jitter(jittered, params.factors, params.order)
    for actual, image, sigma in zip(pipeline(x, u), jittered, params.sigma.tolist()):
        blurred = tv.gaussian_blur(tv.rgb_to_grayscale(image, 3), [17, 17], [sigma, sigma])
        near = (blurred - 0.5).abs() < 2 * CLOSE  # either side of the threshold is right
        expected = tv.solarize(blurred, 0.5)
        assert_close(actual[~near], expected[~near], atol=2 * CLOSE)


def torchvision_crops(n, height, width, scale, ratio):
    torch.manual_seed(1)
    transform = v2.RandomResizedCrop(8, scale, ratio)
    image = torch.empty(3, height, width)
    boxes = []
    for _ in range(n):
        params = transform.make_params([image])
        boxes.append([params[key] for key in ("top", "left", "height", "width")])
    return torch.tensor(boxes)


def test_boxes_are_distributed_as_torchvisions():
    def describe(boxes):
        top, left, height, width = boxes.double().T
        return height * width, width / height, top, left, top + height, left + width

    crops = 40, 24, (0.08, 1.0), (0.5, 1.2)
    actual = describe(operations.crop_boxes(uniforms(1500), *crops))
    expected = describe(torchvision_crops(1500, *crops))
    for ours, theirs in zip(actual, expected):
        assert stats.ks_2samp(ours, theirs).pvalue > SIGNIFICANCE
    assert (actual[4] <= 40).all()
    assert (actual[5] <= 24).all()


@pytest.mark.parametrize(("height", "width"), [(10, 100), (100, 10), (7, 90)])
def test_a_box_that_never_fits_is_the_largest_central_one(height, width):
    crops = height, width, (1.0, 1.0), (3 / 4, 4 / 3)
    actual = operations.crop_boxes(uniforms(3), *crops)
    assert torch.equal(actual, torchvision_crops(1, *crops).expand(3, 4))


def test_factors_and_order_are_distributed_as_torchvisions():
    n = 2000
    pipeline = Pipeline(size=8, brightness=0.4, contrast=1.5, saturation=0.2, hue=0.1)
    params = pipeline.parameters(uniforms(n))
    torch.manual_seed(2)
    transform = v2.ColorJitter(0.4, 1.5, 0.2, 0.1)
    expected = [transform.make_params([]) for _ in range(n)]
    for i, name in enumerate(("brightness", "contrast", "saturation", "hue")):
        theirs = [draw[f"{name}_factor"] for draw in expected]
        assert stats.ks_2samp(params.factors[:, i], theirs).pvalue > SIGNIFICANCE
    codes = (params.order * torch.tensor([64, 16, 4, 1])).sum(1)
    _, counts = codes.unique(return_counts=True)
    assert len(counts) == 24
    assert stats.chisquare(counts).pvalue > SIGNIFICANCE
    # Factors and order are independent of each other and of what else is drawn.
    top = pipeline.boxes(uniforms(n), 8, 8)[:, 0]
    columns = torch.stack((*params.factors.T, codes.double(), params.sigma, top.double()))
    correlation = torch.corrcoef(columns) - torch.eye(len(columns))
    assert correlation.abs().max() < 5 / math.sqrt(n)


def test_probabilities_are_those_of_the_options():
    n = 4000
    options = {"flip": 0.5, "jitter": 0.8, "grey": 0.2, "blur": 0.3, "solarize": 0.1}
    params = Pipeline(size=8, rotate=0.1, **options).parameters(uniforms(n))
    masks = torch.stack([getattr(params, name) for name in options])
    for hits, probability in zip(masks.sum(1).tolist(), options.values()):
        assert stats.binomtest(hits, n, probability).pvalue > SIGNIFICANCE
    correlation = torch.corrcoef(masks.double()) - torch.eye(len(masks))
    assert correlation.abs().max() < 5 / math.sqrt(n)
    assert stats.kstest(params.sigma, stats.uniform(0.1, 1.9).cdf).pvalue > SIGNIFICANCE
    assert stats.kstest(params.angle, stats.uniform(-0.1, 0.2).cdf).pvalue > SIGNIFICANCE


def split_mix(state):
    """Return the finaliser of SplitMix64 (Steele, Lea and Flood, 2014), in Python's integers."""
    state %= 2**64
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    state = (state ^ (state >> 27)) * 0x94D049BB133111EB % 2**64
    return state ^ (state >> 31)


@pytest.mark.parametrize("row", [0, 5, 10**6])
def test_random_rows_are_split_mix(row):
    digest = hashlib.blake2b(repr((3, "a")).encode(), digest_size=8).digest()
    seed = int.from_bytes(digest, "little")
    expected = []
    for counter in range(row * DRAWS + 1, (row + 1) * DRAWS + 1):
        bits = split_mix(seed + counter * 0x9E3779B97F4A7C15) >> 40
        expected.append(bits / 2**24)
    assert random_rows([1, row], 3, "a")[1].tolist() == expected


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("options", [{}, {"rotate": 0.2}, {"size": 12}])
def test_a_view_has_the_same_bits_in_any_batch(channels, options, monkeypatch):
    monkeypatch.setattr(views, "CHUNK_VALUES", 128 * 3 * 32 * 32)
    pipeline = Pipeline(**{"size": 32, "blur": 0.5, "solarize": 0.3} | options)
    n = 300  # more than a chunk
    x, u = images(n, channels), uniforms(n)
    expected = pipeline(x, u)
    assert torch.equal(x, images(n, channels)), "the input is unchanged"
    shuffled = torch.randperm(n, generator=draws.generator("shuffle"))
    for rows in (shuffled, slice(0, 1), slice(5, 8), slice(10, 75), slice(290, 300)):
        assert torch.equal(pipeline(x[rows], u[rows]), expected[rows])


def test_uniform_numbers_belong_to_seed_epoch_view_and_sample():
    """Compare with other samples and views present."""
    few = Views([Pipeline(size=32)])
    many = Views([Pipeline(size=32, num_crops=1), Pipeline(size=32, blur=1.0, num_crops=3)])
    keys = itertools.product(range(3), range(3))
    rows = torch.cat([few.uniforms(range(7), *key) for key in keys])
    assert len(rows.flatten(0, 1).unique(dim=0)) == 18 * 7
    expected = few.uniforms([5, 2], 1, 2)[1]
    assert torch.equal(many.uniforms(torch.tensor([5, 2]), 1, 2)[1], expected)


@pytest.mark.parametrize(
    ("option", "value"),
    [("size", 1), ("hue", 0.6), ("crop_scale", (0.5, 1.5)), ("blur_sigma", 2.0)],
)
def test_an_option_out_of_range_is_named(option, value):
    with pytest.raises(ValueError, match=option):
        Pipeline(**{"size": 32, option: value})


@pytest.mark.parametrize("pipelines", [[], [{"size": 32}], [Pipeline(size=16), Pipeline(size=32)]])
def test_views_refuse_what_is_no_list_of_pipelines_and_small_ones_first(pipelines):
    with pytest.raises(ValueError, match="pipelines"):
        Views(pipelines)
