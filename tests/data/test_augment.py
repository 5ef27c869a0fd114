"""Views against torchvision: the same parameters give the same images, and the same statistics."""

import dataclasses
import hashlib
import itertools
import math

import numpy as np
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
# The same view in two batches, whose kernels see other shapes. Measured: no difference with four
# instruction sets. Kernels may sum in another order, which changes a value in [0, 1] by a few eps.
ROUNDING = 4 * torch.finfo(torch.float32).eps
SIGNIFICANCE = 1e-4  # of each statistical test; seeds are fixed, so none of them flickers

RATIO = (3 / 4, 4 / 3)
STRENGTHS = {
    "brightness": 0.4,
    "contrast": 1.5,
    "saturation": 0.2,
    "hue": 0.1,
}
PROBABILITIES = {
    "flip": 0.5,
    "jitter": 0.8,
    "grey": 0.2,
    "blur": 0.3,
    "solarize": 0.1,
}


def images(n=24, channels=3, height=32, width=32):
    generator = draws.generator("images")
    return torch.rand(n, channels, height, width, generator=generator)


def uniforms(n):
    generator = draws.generator("uniforms")
    return torch.rand(n, DRAWS, generator=generator)


def assert_close(actual, expected, atol=CLOSE):
    torch.testing.assert_close(actual, expected, atol=atol, rtol=0)


@pytest.mark.parametrize("size", [40, 32, 20, 7])
def test_crop_equals_torchvision(size):
    x = images(height=24, width=37)
    u = uniforms(24)
    boxes = operations.crop_boxes(u, 24, 37, (0.05, 1.0), RATIO)
    actual = operations.crop_resize(x, boxes, size)
    for image, box, view in zip(x, boxes.tolist(), actual):
        expected = tv.resized_crop(image, *box, [size, size])
        assert_close(view, expected)


@pytest.mark.parametrize("angle", [-0.4, 1.0])
def test_rotation_equals_torchvision_where_it_sees_the_image(angle):
    x = images(4)
    actual = operations.rotate(x, torch.full((4,), angle))
    # torchvision turns everything black that lies outside the image.
    options = math.degrees(angle), v2.InterpolationMode.BILINEAR
    expected = tv.rotate(x, *options)
    white = torch.ones_like(x)
    visible = tv.rotate(white, *options) > 0.999
    assert visible.float().mean() > 0.7
    assert_close(actual[visible], expected[visible])
    assert (actual > 0).all()  # corners repeat the edge, none turns black


@pytest.mark.parametrize("channels", [1, 3])
def test_jitter_in_every_order_equals_torchvision(channels):
    """Compare on noise, and on every corner, edge and tie of the colour cube."""
    adjust = (
        tv.adjust_brightness,
        tv.adjust_contrast,
        tv.adjust_saturation,
        tv.adjust_hue,
    )
    order = torch.tensor(list(itertools.permutations(range(4))))
    x = images(24, channels, 8, 8)
    if channels == 3:
        levels = torch.tensor([0.0, 0.25, 0.5, 1.0])
        cube = torch.cartesian_prod(levels, levels, levels)
        x[1::2] = cube.T.view(3, 8, 8)
    factors = 1.8 * uniforms(24)[:, :4]
    hue = factors[:, 3]
    hue.div_(2).sub_(0.45)
    actual = operations.color_jitter(x.clone(), factors, order)
    for i, expected in enumerate(x):
        for operation in order[i].tolist():
            factor = factors[i, operation].item()
            expected = adjust[operation](expected, factor)
        assert_close(actual[i], expected)


@pytest.mark.parametrize(
    ("size", "radius"),
    [
        (32, 8),
        (8, 7),
        (32, 1),
    ],
)
def test_blur_equals_torchvision(size, radius):
    x = images(5, height=size, width=size)
    sigmas = torch.tensor([0.1, 0.4, 1.0, 1.5, 2.0])
    actual = operations.blur(x, sigmas, radius)
    for image, sigma, view in zip(x, sigmas.tolist(), actual):
        expected = tv.gaussian_blur(image, 2 * radius + 1, sigma)
        assert_close(view, expected, atol=2e-6)


def test_a_blur_reaches_at_most_to_the_other_side_of_a_view():
    """Reflected edges need a kernel that is narrower than the image."""
    sharp = Pipeline(size=6, num_crops=1)
    blurred = dataclasses.replace(sharp, blur=1.0, blur_sigma=(2.0, 2.0))  # reaches 8 pixels
    x = images(3, height=6, width=6)
    u = uniforms(3)[None]
    expected = operations.blur(sharp(x, u)[0], torch.full((3,), 2.0), radius=5)
    assert torch.equal(blurred(x, u)[0], expected)


def test_every_draw_has_its_own_column():
    tries = range(2 * draws.TRIES)
    factors = range(draws.FACTORS, draws.FACTORS + 4)
    single = "TOP LEFT FLIP ROTATE JITTER ORDER GREY BLUR SIGMA SOLARIZE"
    columns = [getattr(draws, name) for name in single.split()]
    assert sorted([*tries, *factors, *columns]) == list(range(DRAWS))


def test_operations_come_in_solo_learns_order():
    always = dict.fromkeys(("jitter", "grey", "blur", "solarize"), 1.0)
    pipeline = Pipeline(size=32, **always)
    x = images(8)
    u = uniforms(8)
    u[0, draws.SIGMA] = 0.999  # as wide as a Gaussian can be, so that its reach matters
    boxes = pipeline.boxes(u, 32, 32)
    params = pipeline.parameters(u)
    flip = params.flip
    expected = operations.crop_resize(x, boxes, 32)
    expected[flip] = expected[flip].flip(3)
    expected = operations.color_jitter(expected, params.factors, params.order)
    expected = operations.luma(expected).expand_as(expected)
    expected = operations.blur(expected, params.sigma, radius=8)
    expected = operations.solarize(expected)
    assert torch.equal(pipeline(x, u[None]), expected[None])


def torchvision_crops(n, height, width, scale, ratio):
    torch.manual_seed(1)
    transform = v2.RandomResizedCrop(8, scale, ratio)
    image = torch.empty(3, height, width)
    boxes = []
    for _ in range(n):
        box = transform.make_params([image])
        boxes.append([box["top"], box["left"], box["height"], box["width"]])
    return torch.tensor(boxes)


def test_boxes_are_distributed_as_torchvisions():
    def describe(boxes):
        top, left, height, width = boxes.double().T
        area = height * width
        return area, width / height, top, left, top + height, left + width

    crops = 40, 24, (0.08, 1.0), (0.5, 1.2)
    boxes = operations.crop_boxes(uniforms(1500), *crops)
    actual = describe(boxes)
    expected = describe(torchvision_crops(1500, *crops))
    for ours, theirs in zip(actual, expected):
        assert stats.ks_2samp(ours, theirs).pvalue > SIGNIFICANCE
    bottom, right = actual[4:]
    assert bottom.max() <= 40
    assert right.max() <= 24


@pytest.mark.parametrize(
    ("height", "width"),
    [
        (10, 100),
        (100, 10),
        (7, 90),
    ],
)
def test_a_box_that_never_fits_is_the_largest_central_one(height, width):
    crops = height, width, (1.0, 1.0), RATIO
    actual = operations.crop_boxes(uniforms(3), *crops)
    expected = torchvision_crops(1, *crops)
    assert torch.equal(actual, expected.expand(3, 4))


def test_parameters_are_independent_and_distributed_as_torchvisions_and_the_options():
    n = 4000
    u = uniforms(n)
    pipeline = Pipeline(size=8, rotate=0.1, **STRENGTHS, **PROBABILITIES)
    params = pipeline.parameters(u)
    torch.manual_seed(2)
    transform = v2.ColorJitter(**STRENGTHS)
    expected = [transform.make_params([]) for _ in range(n)]
    for i, name in enumerate(STRENGTHS):
        theirs = [draw[f"{name}_factor"] for draw in expected]
        assert stats.ks_2samp(params.factors[:, i], theirs).pvalue > SIGNIFICANCE
    digits = params.order * torch.tensor([64, 16, 4, 1])
    codes = digits.sum(1)
    _, counts = codes.unique(return_counts=True)
    assert len(counts) == 24
    assert stats.chisquare(counts).pvalue > SIGNIFICANCE
    masks = [getattr(params, name) for name in PROBABILITIES]
    for mask, probability in zip(masks, PROBABILITIES.values()):
        hits = int(mask.sum())
        assert stats.binomtest(hits, n, probability).pvalue > SIGNIFICANCE
    for values, low, length in ((params.sigma, 0.1, 1.9), (params.angle, -0.1, 0.2)):
        uniform = stats.uniform(low, length)
        assert stats.kstest(values, uniform.cdf).pvalue > SIGNIFICANCE
    top = pipeline.boxes(u, 8, 8)[:, 0]
    columns = np.stack([*params.factors.T, codes, *masks, params.angle, params.sigma, top])
    correlation = np.corrcoef(columns) - np.eye(len(columns))
    assert np.abs(correlation).max() < 5 / math.sqrt(n)  # five standard deviations


def split_mix(state):
    """Return the finaliser of SplitMix64 (Steele, Lea and Flood, 2014), in Python's integers."""
    state %= 2**64
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    state = (state ^ (state >> 27)) * 0x94D049BB133111EB % 2**64
    return state ^ (state >> 31)


@pytest.mark.parametrize("row", [0, 5, 10**6])
def test_random_rows_are_split_mix(row):
    key = repr((3, "a")).encode()
    digest = hashlib.blake2b(key, digest_size=8).digest()
    seed = int.from_bytes(digest, "little")
    expected = []
    for column in range(DRAWS):
        counter = row * DRAWS + column + 1
        state = seed + counter * 0x9E3779B97F4A7C15
        bits = split_mix(state) >> 40
        expected.append(bits / 2**24)
    _, actual = random_rows([1, row], 3, "a")
    assert actual.tolist() == expected


MIXED = [
    Pipeline(16, num_crops=2, solarize=0.3),
    Pipeline(16, num_crops=1, blur=1.0, rotate=0.3),
    Pipeline(8, num_crops=5, crop_scale=(0.05, 0.2), blur=0.5, rotate=0.1),
]


@pytest.mark.parametrize("chunk", [1, 2**15, 2**20])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("side", [16, 23])
def test_a_view_is_the_same_in_any_batch(side, channels, chunk, monkeypatch):
    """Images fit the views or are larger; CHUNK_VALUES holds one image, a few, or all."""
    augmentation = Views(MIXED)
    assert (augmentation.num_large_crops, augmentation.num_small_crops) == (3, 5)
    n = 24
    x = images(n, channels, side, side)
    u = augmentation.uniforms(range(n), seed=0, epoch=1)
    with monkeypatch.context() as patch:
        patch.setattr(views, "CHUNK_VALUES", chunk)
        stacks = augmentation(x, u)
        crops = [stack.mul(255).byte() for stack in stacks]
        finished = augmentation.finish(crops, u)
    assert torch.equal(x, images(n, channels, side, side)), "the input is unchanged"
    order = torch.randperm(n, generator=draws.generator("shuffle"))
    tables = u.split(augmentation.counts)
    for pipeline, *parts in zip(MIXED, tables, stacks, crops, finished, strict=True):
        assert len(parts[0]) == pipeline.num_crops
        for table, view, crop, of_file in zip(*parts, strict=True):
            for rows in (order, order[:1]):
                (actual,) = pipeline(x[rows], table[None, rows])
                assert_close(actual, view[rows], atol=ROUNDING)
                (actual,) = pipeline.finish(crop[None, rows], table[None, rows])
                assert_close(actual, of_file[rows], atol=ROUNDING)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("size", 1),
        ("hue", 0.6),
        ("crop_scale", (0.5, 1.5)),
        ("blur_sigma", 2.0),
    ],
)
def test_an_option_out_of_range_is_named(option, value):
    with pytest.raises(ValueError, match=option):
        Pipeline(**{"size": 32, option: value})


def test_small_views_before_large_ones_are_refused():
    with pytest.raises(ValueError, match="pipelines"):
        Views([Pipeline(size=16), Pipeline(size=32)])
