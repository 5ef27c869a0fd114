"""Folders of images in their real formats: found, decoded, loaded, refused, and trained on."""

import hashlib
import logging
import re
import tarfile

import numpy as np
import pytest
import torch
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from PIL import Image
from scipy import stats
from support.image_files import SIZE, a_pair, loader, picture, spoil, truncate, write_tree
from support.small_runs import SMALL, configure, rows, run
from torchvision.datasets import CIFAR10, ImageFolder
from torchvision.datasets.folder import default_loader
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as tv

from rdm_solo import data
from rdm_solo.data import DataError, Pipeline, decoding, folders, images
from rdm_solo.data.draws import DRAWS, random_rows


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    return write_tree(tmp_path_factory.mktemp("tree"))


def epoch_of(loader, epoch=0):
    loader.sampler.set_epoch(epoch)  # as Lightning does
    return list(loader)


def by_sample(batches):
    return {
        index: torch.stack(views)
        for indices, crops, _ in batches
        for index, *views in zip(indices.tolist(), *crops, strict=True)
    }


def same(batches, others):
    """Equal to the last bit."""
    assert len(batches) == len(others)
    for (i, crops, labels), (j, their_crops, their_labels) in zip(batches, others):
        assert torch.equal(i, j)
        assert torch.equal(labels, their_labels)
        assert all(torch.equal(a, b) for a, b in zip(crops, their_crops, strict=True))


# --- what is found ----------------------------------------------------------------------------


def test_the_hundred_classes_are_those_of_contrastive_multiview_coding():
    names = folders.imagenet100_classes()
    assert len(names) == len(set(names)) == 100
    assert names == sorted(names)
    assert all(re.fullmatch(r"n\d{8}", name) for name in names)
    # The list's own order, as its authors published it.
    lines = (folders.Path(folders.__file__).parent / "imagenet100.txt").read_text().split("\n")
    published = "\n".join(line for line in lines if line.startswith("n")) + "\n"
    assert hashlib.md5(published.encode()).hexdigest() == "9974508e5d4cc0098b70e8b6a0fe6067"


def test_samples_and_labels_are_torchvisions(tree):
    dataset = folders.folder(tree)
    assert (dataset.num_classes, dataset.labelled) == (3, True)
    for part, files in (("train", dataset.train), ("val", dataset.val)):
        want = ImageFolder(str(tree / part))
        assert [str(files.path(i)) for i in range(len(files))] == [p for p, _ in want.samples]
        assert files.labels.tolist() == want.targets


def test_nested_folders_belong_to_their_class_and_links_are_followed(tmp_path):
    write_tree(tmp_path, train=2, val=1)
    deep = tmp_path / "train" / "dog" / "more" / "still more"
    deep.mkdir(parents=True)
    picture(0).save(deep / "ä b.jpeg")
    (tmp_path / "train" / "dog" / "zoo").mkdir()
    picture(1).save(tmp_path / "train" / "dog" / "zoo" / "0.bmp")
    (tmp_path / "train" / "dog" / "again").symlink_to(tmp_path / "train" / "dog")
    (tmp_path / "train" / "dog" / "notes.txt").write_text("no image")
    (tmp_path / "train" / "dog" / "._00.jpg").write_text("what macOS leaves behind")
    (tmp_path / "train" / ".cache").mkdir()
    files = folders.folder(tmp_path).train
    names = [str(files.path(i).relative_to(tmp_path / "train")) for i in range(len(files))]
    assert names == [
        *("cat/00.jpg", "cat/01.jpg", "dog/00.jpg", "dog/01.jpg", "dog/more/still more/ä b.jpeg"),
        *("dog/zoo/0.bmp", "eel/00.jpg", "eel/01.jpg"),
    ]
    assert files.labels.tolist() == [0, 0, 1, 1, 1, 1, 2, 2]
    assert len(list(loader(tmp_path, batch_size=8))) == 1


def test_imagenet100_is_taken_from_imagenet_or_from_a_copy(tmp_path):
    names = folders.imagenet100_classes()
    others = [f"n{i:08}" for i in range(900)]
    for root, classes in (("all", names + others), ("copy", names)):
        for part in ("train", "val"):
            for name in classes:
                (tmp_path / root / part / name).mkdir(parents=True)
                (tmp_path / root / part / name / f"{name}_1.JPEG").write_bytes(b"unread")
    for root in ("all", "copy"):
        dataset = folders.imagenet100(tmp_path / root)
        assert (dataset.num_classes, len(dataset.train), len(dataset.val)) == (100, 100, 100)
        assert [dataset.train.path(i).parent.name for i in range(100)] == names
        assert dataset.train.labels.tolist() == list(range(100))
    everything = folders.imagenet(tmp_path / "all")
    assert (everything.num_classes, len(everything.val)) == (1000, 1000)
    assert (everything.mean, everything.std) == ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    train = tmp_path / "copy" / "train"
    with pytest.raises(DataError, match=rf"{train} holds 100 class folders.*dataset=folder"):
        folders.imagenet(tmp_path / "copy")
    (train / names[7] / f"{names[7]}_1.JPEG").unlink()
    with pytest.raises(DataError, match=f"{train / names[7]} is empty of images"):
        folders.imagenet100(tmp_path / "copy")
    (train / names[7]).rmdir()
    with pytest.raises(DataError, match=rf"{train} lacks 1 of imagenet100's 100.*{names[7]}"):
        folders.imagenet100(tmp_path / "copy")


def test_without_labels_every_image_counts_and_the_log_says_so(tmp_path, caplog):
    write_tree(tmp_path, train=2, val=1)
    flat = tmp_path / "flat"
    flat.mkdir()
    for i in range(4):
        picture(i).save(flat / f"{i}.png")
    caplog.set_level(logging.INFO, "rdm_solo")
    for root, options, n in ((flat, {}, 4), (tmp_path, {"labels": False}, 6)):
        caplog.clear()
        dataset = folders.folder(root, **options)
        assert (len(dataset.train), dataset.num_classes, dataset.val) == (n, 1, None)
        assert not dataset.labelled
        assert dataset.train.labels.tolist() == [0] * n
        (line,) = caplog.messages
        assert "without labels: no validation, no accuracies" in line
        assert str(root) in line


def test_a_training_folder_alone_has_labels_and_no_validation(tmp_path, caplog):
    write_tree(tmp_path, train=2, val=1)
    caplog.set_level(logging.INFO, "rdm_solo")
    alone = folders.folder(tmp_path / "train")
    assert (alone.num_classes, alone.labelled, alone.val) == (3, True, None)
    assert "no validation" in caplog.text
    assert len(folders.folder(tmp_path, train="val", val="train").train) == 3


# --- pixels -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "name"),
    [
        ("RGB", "x.jpg"),
        ("L", "x.jpg"),
        ("CMYK", "x.jpg"),
        ("RGBA", "x.png"),
        ("LA", "x.png"),
        ("P", "x.png"),
        ("1", "x.png"),
        ("RGB", "x.webp"),
        ("RGB", "x.bmp"),
        ("CMYK", "x.tiff"),
        ("L", "x.pgm"),
    ],
)
def test_pixels_are_those_of_torchvisions_loader(tmp_path, mode, name):
    path = tmp_path / name
    picture(1).convert(mode).save(path)
    got = decoding.decode(decoding.open_image(path.read_bytes()))
    assert torch.equal(got, torch.from_numpy(np.array(default_loader(path))).permute(2, 0, 1))


def test_transparent_palettes_and_orientations_too(tmp_path):
    alpha = picture(2).convert("RGBA")
    alpha.putalpha(picture(3, alpha.height, alpha.width, "L"))
    palette = alpha.quantize(16)
    palette.save(tmp_path / "p.png", transparency=bytes(range(0, 160, 10)))
    exif = Image.Exif()
    exif[0x0112] = 6  # a camera held upright: to be turned by a quarter
    picture(4, 30, 20).save(tmp_path / "turned.jpg", exif=exif)
    for name in ("p.png", "turned.jpg"):
        path = tmp_path / name
        got = decoding.decode(decoding.open_image(path.read_bytes()))
        assert torch.equal(got, torch.from_numpy(np.array(default_loader(path))).permute(2, 0, 1))
    assert got.shape == (3, 30, 20)  # neither of them turns it


@pytest.mark.parametrize("name", ["x.png", "x.tiff"])
def test_sixteen_bits_are_scaled_not_clipped(tmp_path, name):
    values = np.random.default_rng(0).integers(0, 65536, (9, 7), dtype=np.uint16)
    Image.fromarray(values).save(tmp_path / name)
    got = decoding.decode(decoding.open_image((tmp_path / name).read_bytes()))
    want = torch.from_numpy((values // 257).astype(np.uint8)).expand(3, 9, 7)
    assert torch.equal(got, want)


def test_grey_is_one_channel(tree):
    grey = {"channels": 1, "mean": (0.5,), "std": (0.25,)}
    (x, _), *_ = loader(tree, "val", source=grey)
    picture = default_loader(str(folders.folder(tree).val.path(0))).convert("L")
    want = v2.functional.pil_to_tensor(picture)
    want = tv.center_crop(tv.resize(want, [round(SIZE * 8 / 7)], antialias=True), [SIZE])
    assert x.shape[1:] == (1, SIZE, SIZE)
    torch.testing.assert_close(x[0], (want / 255 - 0.5) / 0.25, atol=5 / 255, rtol=0)
    (_, crops, _), *_ = loader(tree, source=grey, expand_channels=3)
    assert crops[0].shape == (8, 3, SIZE, SIZE)


# Measured over 60 boxes of this picture: at most 1 level bilinear, 2 bicubic; Pillow rounds between
# its two passes to bytes just the same.
@pytest.mark.parametrize(("mode", "levels"), [("bilinear", 1), ("bicubic", 2)])
def test_crops_are_pillows(mode, levels):
    image = picture(5, 90, 120)
    draw = np.random.default_rng(0)
    resample = getattr(Image.Resampling, mode.upper())
    x = decoding.decode(image)
    for _ in range(20):
        top, left = draw.integers(0, 40, 2).tolist()
        height, width = draw.integers(5, 50, 2).tolist()
        got = decoding.resize_box(x, (top, left, height, width), (24, 24), mode)
        want = image.crop((left, top, left + width, top + height)).resize((24, 24), resample)
        assert (
            got.permute(1, 2, 0).int() - torch.from_numpy(np.array(want)).int()
        ).abs().max() <= levels


@pytest.mark.parametrize("shape", [(50, 80), (80, 50), (33, 33), (9, 41)])
def test_clean_images_are_resized_and_cut_out_of_the_middle(shape):
    image = picture(6, *shape)
    got = decoding.clean(image, images.Reading(size=28, resize=32))
    want = v2.Compose([v2.Resize(32), v2.CenterCrop(28)])(image)
    difference = got.permute(1, 2, 0).int() - torch.from_numpy(np.array(want)).int()
    assert difference.abs().max() <= 1


def test_large_jpegs_are_decoded_at_a_fraction_and_look_the_same(tmp_path):
    path = tmp_path / "large.jpg"
    picture(7, 1200, 1600).resize((1600, 1200)).save(path, quality=95)
    boxes = [[0, 0, 1200, 1600], [100, 200, 900, 800], [301, 401, 500, 500]]
    for fraction, sizes in ((8, [32] * 2), (4, [56] * 2), (2, [112] * 3), (1, [224] * 3)):
        image = decoding.open_image(path.read_bytes())
        got = decoding.cut_views(image, boxes[: len(sizes)], sizes, images.Reading())
        assert image.width == 1600 // fraction
        whole = decoding.decode(decoding.open_image(path.read_bytes()))
        for crop, box, size in zip(got, boxes, sizes):
            want = decoding.resize_box(whole, box, (size, size), "bilinear")
            # Measured: at most 0.87 of 255 levels on average, in a picture with noise of 20.
            assert (crop.float() - want.float()).abs().mean() < 1.0


# --- draws ------------------------------------------------------------------------------------


def test_random_rows_are_uniform_and_independent():
    rows = random_rows(range(20_000), 0, 1, 2)
    assert rows.shape == (20_000, DRAWS)
    assert rows.min() >= 0
    assert rows.max() < 1
    for column in rows.T[::5]:
        assert stats.kstest(column, stats.uniform.cdf).pvalue > 1e-4
    # Neighbouring rows, neighbouring columns, the next epoch and the next view.
    others = [random_rows(range(19_999), *key)[:, 3] for key in ((0, 2, 2), (0, 1, 3), (1, 1, 2))]
    parts = torch.stack((rows[:-1, 3], rows[1:, 3], rows[:-1, 4], *others))
    correlation = torch.corrcoef(parts) - torch.eye(len(parts))
    assert correlation.abs().max() < 5 / 20_000**0.5
    assert len(random_rows(range(20_000), 5)[:, 0].unique()) > 19_950
    assert torch.equal(random_rows([10**12, 7], 3)[1], random_rows([7], 3)[0])


@pytest.mark.parametrize("options", [{}, {"rotate": 0.2}])
def test_a_crop_that_is_finished_is_the_view(options):
    """The whole pipeline on an image of the view's size, whose crop is all of it."""
    pipeline = Pipeline(
        SIZE, crop_scale=(1, 1), crop_ratio=(1, 1), blur=0.5, solarize=0.3, **options
    )
    pixels = torch.stack([decoding.decode(picture(i, SIZE, SIZE)) for i in range(40)])
    u = random_rows(range(40), 0)
    want = pipeline(pixels / 255, u)
    near = (want - 0.5).abs() < 1e-4  # either side of solarisation's threshold is right
    torch.testing.assert_close(pipeline.finish(pixels, u)[~near], want[~near], atol=1e-5, rtol=0)


# --- the loader -------------------------------------------------------------------------------


def test_a_batch_is_what_its_draws_say(tree):
    views, mean, std = a_pair(), (0.1, 0.5, 0.7), (0.2, 0.3, 0.4)
    batches = loader(tree, views=views, mean=mean, std=std, seed=3)
    files = batches.images
    shift, scale = (torch.tensor(v).view(3, 1, 1) for v in (mean, std))
    for indices, crops, labels in epoch_of(batches, 4):
        assert indices.dtype == labels.dtype == torch.int64
        assert torch.equal(labels, files.labels[indices])
        assert [crop.shape for crop in crops] == [(8, 3, SIZE, SIZE)] * 2
        for row, index in enumerate(indices.tolist()):
            image = default_loader(str(files.path(index)))
            for v, u in enumerate(views.uniforms([index], 3, 4)):
                top, left, height, width = (
                    views.pipeline(v).boxes(u, image.height, image.width)[0].tolist()
                )
                cut = image.crop((left, top, left + width, top + height))
                cut = cut.resize((SIZE, SIZE), Image.Resampling.BILINEAR)
                cut = torch.from_numpy(np.array(cut)).permute(2, 0, 1)[None]
                want = (views.pipeline(v).finish(cut, u)[0] - shift) / scale
                # A level of the crop is 1/255; jitter may double it, solarisation turn a value.
                apart = (crops[v][row] - want).abs() * scale
                assert apart.median() < 1e-3
                assert (apart > 3 / 255).float().mean() < 0.02


def test_workers_change_nothing(tree):
    want = [epoch_of(loader(tree), epoch) for epoch in (0, 1)]
    for workers in (1, 2):
        batches = loader(tree, source={"workers": workers})
        for epoch in (0, 1):  # the second with the first one's workers
            same(epoch_of(batches, epoch), want[epoch])
        same(epoch_of(batches, 0), want[0])
    val = list(loader(tree, "val"))
    for (x, y), (a, b) in zip(list(loader(tree, "val", source={"workers": 2})), val, strict=True):
        assert torch.equal(x, a)
        assert torch.equal(y, b)


def test_an_epoch_left_early_does_not_leak_into_the_next(tree):
    batches = loader(tree, source={"workers": 2}, batch_size=2)
    for epoch in (0, 1, 2):
        batches.set_epoch(epoch)
        for _ in zip(range(2), batches):
            pass
    same(epoch_of(batches, 3), epoch_of(loader(tree, batch_size=2), 3))


def test_neither_batch_size_nor_processes_change_a_samples_views(tree):
    want = by_sample(epoch_of(loader(tree, drop_last=False), 2))
    assert len(want) == 30
    for other in (
        loader(tree, batch_size=11, drop_last=False),
        loader(tree, shuffle=False),
        *(loader(tree, batch_size=5, rank=r, world_size=3) for r in range(3)),
    ):
        got = by_sample(epoch_of(other, 2))
        assert got
        assert all(torch.equal(views, want[index]) for index, views in got.items())
    for other in (epoch_of(loader(tree, seed=1), 2), epoch_of(loader(tree), 3)):
        assert not any(torch.equal(v, want[index]) for index, v in by_sample(other).items())


@pytest.mark.parametrize("world", [2, 3])
def test_processes_together_see_what_one_sees(tree, world):
    one = epoch_of(loader(tree, batch_size=4 * world), 1)
    ranks = [
        epoch_of(loader(tree, batch_size=4, rank=r, world_size=world), 1) for r in range(world)
    ]
    together = [
        (torch.cat(i), [torch.cat(view) for view in zip(*crops)], torch.cat(labels))
        for i, crops, labels in (zip(*step) for step in zip(*ranks, strict=True))
    ]
    same(together, one)
    shares = [
        torch.cat([y for _, y in loader(tree, "val", 2, rank=r, world_size=world)])
        for r in range(world)
    ]
    assert sum(len(share) for share in shares) == 12


# A crop of a file is rounded to bytes before the rest of the view, one in memory is not. Measured
# over three seeds: half of the values are at most 4.8e-4 apart and 99% at most 3.8e-3, or 1.8e-7
# where the crop is the whole image; half of the values of other draws are 0.13 apart or more.
# Without solarisation, which may turn a value over.
@pytest.mark.parametrize(
    ("options", "median", "most"),
    [
        ({"crop_scale": (1, 1), "crop_ratio": (1, 1), "size": 24}, 1e-6, 1e-6),
        ({"rotate": 0.2}, 1e-3, 8e-3),
    ],
)
def test_lossless_files_get_the_views_of_the_same_images_in_memory(tmp_path, options, median, most):
    part = data.synthetic(num_train=30, num_val=1, size=24).train
    for i, pixels in enumerate(part.images):
        Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(tmp_path / f"{i:02}.png")
    views = a_pair(solarize=0.0, **options)
    common = {"views": views, "mean": (0.0,) * 3, "std": (1.0,) * 3, "seed": 3}

    def in_memory(epoch, **loading):
        return epoch_of(data.EpochLoader(part, **{"batch_size": 8} | common | loading), epoch)

    def in_files(epoch, **loading):
        return epoch_of(loader(tmp_path, **common | loading), epoch)

    def apart(ours, theirs):
        assert ours.keys() <= theirs.keys()
        gaps = torch.cat([(crops - theirs[i]).abs().flatten() for i, crops in ours.items()])
        return gaps.median(), gaps.quantile(0.99)

    for ours, theirs in zip(in_files(5), in_memory(5), strict=True):
        assert torch.equal(ours[0], theirs[0])
    want = by_sample(in_memory(5, drop_last=False))
    assert len(want) == 30
    for loading in (
        {"drop_last": False},
        {"batch_size": 11},
        {"source": {"workers": 1}},
        *({"batch_size": 5, "rank": rank, "world_size": 3} for rank in range(3)),
    ):
        middle, far = apart(by_sample(in_files(5, **loading)), want)
        assert middle < median
        assert far < most
    for other in (in_files(4), in_files(5, seed=2)):
        assert apart(by_sample(other), want)[0] > 0.05


def test_validation_is_every_image_once_in_order(tree):
    batches = loader(tree, "val", batch_size=5)
    x, labels = (torch.cat(parts) for parts in zip(*batches))
    assert labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    files = batches.images
    for i in range(12):
        image = default_loader(str(files.path(i)))
        want = v2.Compose([v2.Resize(round(SIZE * 8 / 7)), v2.CenterCrop(SIZE), v2.ToImage()])(
            image
        )
        want = tv.normalize(want.float() / 255, files_mean := batches.mean, batches.std)
        assert len(files_mean) == 3
        torch.testing.assert_close(x[i], want, atol=1.01 / 255 / min(batches.std), rtol=0)


def test_loading_leaves_the_runs_random_numbers_alone(tree):
    states = []
    for workers in (0, 2):
        torch.manual_seed(0)
        epoch_of(loader(tree, source={"workers": workers}))
        states.append(torch.get_rng_state())
    assert torch.equal(*states)
    torch.manual_seed(0)
    assert torch.equal(torch.get_rng_state(), states[0])


# --- what is refused --------------------------------------------------------------------------


def refusal(root, **options):
    with pytest.raises(DataError) as caught:
        folders.folder(root, **options)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_a_root_that_is_none_is_named(tmp_path):
    assert f"dataset.root={tmp_path / 'gone'} does not exist" in refusal(tmp_path / "gone")
    broken = tmp_path / "imagenet.tar"
    broken.write_bytes(b"half an archive")
    assert f"{broken} is a file (neither a folder nor an intact tar or zip)" in refusal(broken)
    whole = tmp_path / "whole.tar.gz"
    with tarfile.open(whole, "w:gz") as archive:
        archive.add(broken)
    assert f"{whole} is an archive: unpack" in refusal(whole)


def test_missing_parts_are_named(tmp_path, tree):
    write_tree(tmp_path, train=1, val=1)
    assert f"{tree / 'valid'} does not exist" in refusal(tree, val="valid")
    assert f"{tree / 'pretrain'} does not exist" in refusal(tree, train="pretrain")
    (tmp_path / "train").rename(tmp_path / "training")
    message = refusal(tmp_path)
    assert f"{tmp_path / 'train'} does not exist" in message
    assert "training" in message
    for load in (folders.imagenet, folders.imagenet100):
        with pytest.raises(DataError, match=rf"root={tmp_path} holds no folder 'train'"):
            load(tmp_path)
    (tmp_path / "training").rename(tmp_path / "train")
    (tmp_path / "val").rename(tmp_path / "validation")
    with pytest.raises(DataError, match=rf"holds no folder 'val' \({tmp_path / 'val'}\)"):
        folders.imagenet(tmp_path)


def test_empty_folders_are_named(tmp_path):
    assert f"{tmp_path} holds no images (no files)" in refusal(tmp_path)
    (tmp_path / "a.xcf").write_bytes(b"")
    assert "it holds 1 .xcf; images end in .jpg" in refusal(tmp_path)
    root = write_tree(tmp_path / "tree", train=1, val=1)
    (root / "train" / "ant").mkdir()
    assert f"{root / 'train' / 'ant'} is empty of images (no files)" in refusal(root)
    (root / "train" / "ant" / "list.csv").write_text("")
    assert "1 .csv" in refusal(root)


def test_classes_that_differ_are_named(tmp_path):
    write_tree(tmp_path, train=1, val=1)
    (tmp_path / "val" / "eel").rename(tmp_path / "val" / "elk")
    message = refusal(tmp_path)
    assert str(tmp_path / "train") in message
    assert str(tmp_path / "val") in message
    assert "eel, elk" in message
    for name in ("cat", "dog", "elk"):
        (tmp_path / "val" / name / "00.jpg").rename(tmp_path / "val" / f"{name}.jpg")
        (tmp_path / "val" / name).rmdir()
    assert "cat.jpg lie in it, sort them into class folders" in refusal(tmp_path).replace(
        "dog.jpg", "cat.jpg"
    ).replace("elk.jpg", "cat.jpg")


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *(("image_size", 0), ("image_size", 1), ("image_size", 10**6), ("workers", 10**6)),
        *(("resize", 100), ("workers", -1), ("workers", 1.5), ("channels", 4)),
        *(("interpolation", "nearest"), ("mean", (0.5,)), ("std", (1, 1, 1, 1)), ("std", None)),
        *(("train", None), ("val", 3), ("root", None)),
    ],
)
def test_an_option_out_of_range_is_named(tree, option, value):
    with pytest.raises(ValueError, match=rf"dataset\.{option}(=| must be )"):
        folders.folder(**{"root": tree, option: value})


@pytest.mark.parametrize(
    ("option", "value", "allowed"),
    [
        ("labels", "no", "true or false, or null"),
        ("labels", 0, "true or false, or null"),
        ("skip_broken", "no", "true or false"),
        ("skip_broken", None, "true or false"),
    ],
)
def test_a_word_is_no_switch(tree, option, value, allowed):
    says = rf"^dataset\.{option} must be {allowed}, got {value!r}\.$"
    with pytest.raises(ValueError, match=says):
        folders.folder(tree, **{option: value})
    if option == "skip_broken":
        with pytest.raises(ValueError, match=says):
            folders.imagenet(tree, skip_broken=value)


@pytest.mark.parametrize(("typed", "labelled"), [("True", True), ("FALSE", False), ("null", True)])
def test_switches_as_hydra_reads_them(tree, typed, labelled):
    options = [f"dataset.root={tree}", f"dataset.labels={typed}", "dataset.skip_broken=False"]
    assert instantiate(configure("dataset=folder", *options).dataset.source).labelled == labelled
    with pytest.raises(InstantiationException) as caught:
        instantiate(configure("dataset=folder", *options, "dataset.labels=off").dataset.source)
    assert "dataset.labels must be true or false, or null, got 'off'." in str(
        caught.value.__cause__
    )


# --- what cannot be read ----------------------------------------------------------------------


SPOILT = {
    "truncated": "cannot be decoded .*truncated",
    "empty": "is empty",
    "no image": "is no image",
    "garbage": "(cannot be|is no image)",
    "float": "cannot be decoded .*floating-point",
    "gone": "cannot be read .No such file",
}


@pytest.mark.parametrize("how", SPOILT)
@pytest.mark.parametrize("name", ["01.jpg", "02.png"])
def test_an_unreadable_image_is_named(tmp_path, how, name):
    write_tree(tmp_path, train=4, val=4)
    wanted = loader(tmp_path), loader(tmp_path, "val")
    for part, batches in zip(("train", "val"), wanted):
        path = tmp_path / part / "dog" / name
        spoil(path, how)
        with pytest.raises(
            DataError, match=f"^{path} {SPOILT[how]}.*dataset.skip_broken=true"
        ) as caught:
            list(batches)
        assert "\n" not in str(caught.value)


def test_a_worker_names_it_too(tmp_path):
    write_tree(tmp_path, train=4, val=1)
    truncate(tmp_path / "train" / "dog" / "01.jpg")
    with pytest.raises(DataError, match=r"^/.*/dog/01\.jpg cannot be decoded .*truncated"):
        list(loader(tmp_path, batch_size=12, source={"workers": 2}))


def test_skipped_images_are_replaced_counted_and_named(tmp_path, caplog):
    write_tree(tmp_path, train=8, val=4)
    intact = by_sample(epoch_of(loader(tmp_path, drop_last=False)))
    spoil(tmp_path / "train" / "cat" / "07.jpg", "truncated")  # number 7; its neighbour is a dog
    spoil(tmp_path / "train" / "eel" / "06.jpg", "no image")  # numbers 22 and 23, at the very end
    spoil(tmp_path / "train" / "eel" / "07.jpg", "empty")
    spoil(tmp_path / "val" / "dog" / "01.jpg", "truncated")
    source = {"skip_broken": True}
    batches = loader(tmp_path, source=source, drop_last=False, shuffle=False)
    with caplog.at_level(logging.WARNING, "rdm_solo"):
        got = epoch_of(batches)
    indices, labels = (torch.cat([batch[k] for batch in got]) for k in (0, 2))
    assert indices.tolist() == [*range(7), 8, *range(8, 22), 0, 0]
    assert torch.equal(labels, batches.images.labels[indices])
    crops = torch.cat([torch.stack(batch[1], 1) for batch in got])
    for slot, index in enumerate(indices.tolist()):
        assert torch.equal(crops[slot], intact[index]) == (slot == index)
    for slot, index in ((7, 8), (22, 0)):  # the neighbour's picture, the missing one's draws
        image = decoding.open_image(batches.images.path(index).read_bytes())
        rows = batches.views.uniforms([slot], 0, 0)
        pipeline = batches.views.pipeline(0)
        boxes = [pipeline.boxes(u, image.height, image.width)[0].tolist() for u in rows]
        cut = decoding.cut_views(image, boxes, [SIZE] * 2, batches.images.reading)
        for v, u in enumerate(rows):
            want = tv.normalize(pipeline.finish(cut[v][None], u), batches.mean, batches.std)
            torch.testing.assert_close(crops[slot, v], want[0], atol=1e-5, rtol=0)
    (line,) = caplog.messages
    assert "3 unreadable image(s), replaced by a neighbour" in line
    assert all(name in line for name in ("cat/07.jpg", "eel/06.jpg", "eel/07.jpg"))
    same(epoch_of(batches), got)
    assert len(caplog.messages) == 1  # once is enough
    for other in (
        {"source": source | {"workers": 2}, "batch_size": 8},
        {"source": source, "batch_size": 5},
    ):
        again = epoch_of(loader(tmp_path, drop_last=False, shuffle=False, **other))
        views = torch.cat([torch.stack(batch[1], 1) for batch in again])
        assert torch.equal(views, crops)

    caplog.clear()
    _, labels = (torch.cat(parts) for parts in zip(*loader(tmp_path, "val", source=source)))
    assert labels.tolist() == [0] * 4 + [1] * 3 + [2] * 4
    assert "1 unreadable image(s), left out" in caplog.text
    assert "val/dog/01.jpg" in caplog.text


def test_too_many_broken_images_are_refused_even_so(tmp_path):
    write_tree(tmp_path, train=3, val=1)
    for path in (tmp_path / "train").rglob("*.*"):
        spoil(path, "empty")
    source = {"skip_broken": True}
    with pytest.raises(DataError, match=r"is empty, and 8 images near it cannot be read either"):
        list(loader(tmp_path, batch_size=4, source=source))
    for path in (tmp_path / "val").rglob("*.*"):
        spoil(path, "empty")
    with pytest.raises(DataError, match=r"val/cat/00\.jpg is empty, and 2 images"):
        list(loader(tmp_path, "val", source=source))


def test_an_archive_is_no_root_for_cifar(tmp_path):
    archive = tmp_path / CIFAR10.filename
    archive.write_bytes(b"half an archive")
    with pytest.raises(DataError, match=f"dataset.root={archive} holds no {CIFAR10.base_folder}"):
        data.cifar10(archive)


# --- runs -------------------------------------------------------------------------------------

TRAIN = [option for option in SMALL if not option.startswith("dataset")]
TRAIN += ["dataset=folder", f"dataset.image_size={SIZE}", "batch_size=10", "max_epochs=1"]
TRAIN += ["dataset.workers=0"]


@pytest.mark.parametrize("name", ["folder", "imagenet100", "imagenet"])
def test_the_configs_reach_their_sources(tmp_path, name):
    cfg = configure(f"dataset={name}", f"dataset.root={tmp_path / 'gone'}")
    (pipeline,) = instantiate(cfg.dataset.views).pipelines
    assert (pipeline.size, pipeline.blur, pipeline.crop_scale) == (224, 0.5, (0.2, 1.0))
    with pytest.raises(Exception, match=r"dataset\.root=.*gone does not exist"):
        instantiate(cfg.dataset.source)


def test_a_folder_trains(tree, tmp_path):
    run(tmp_path, *TRAIN, f"dataset.root={tree}", "filter=target_pow")
    (row,) = rows(tmp_path)
    assert 0 <= row["val/knn_acc1"] <= 100
    assert 0 <= row["val/acc1"] <= 100
    assert row["erank/target"] > 1
    run(tmp_path / "two", *TRAIN, f"dataset.root={tree}", "filter=target_pow", "dataset.workers=2")
    assert rows(tmp_path / "two") == rows(tmp_path)


@pytest.mark.parametrize("options", [["dataset.labels=false"], ["dataset.train=val"]])
def test_without_labels_or_validation_it_trains_without_accuracies(tree, tmp_path, options):
    root = tree if "labels" in options[0] else tree / "train"
    options = options if "labels" in options[0] else []
    run(tmp_path, *TRAIN, f"dataset.root={root}", *options)
    header, line = (tmp_path / "metrics.csv").read_text().split()
    row = dict(zip(header.split(","), line.split(",")))
    assert row["val/acc1"] == row["val/knn_acc1"] == ""
    assert float(row["erank/target"]) > 1


def test_an_unreadable_image_ends_a_run_with_a_sentence(tmp_path):
    root = write_tree(tmp_path / "tree", train=4, val=1)
    truncate(root / "train" / "cat" / "00.jpg")
    options = [*TRAIN, f"dataset.root={root}", "batch_size=12"]
    broken = re.escape(str(root / "train" / "cat" / "00.jpg"))
    with pytest.raises(DataError, match=f"{broken} cannot be decoded"):
        run(tmp_path / "run", *options)
    run(tmp_path / "skips", *options, "dataset.skip_broken=true")
    assert len(rows(tmp_path / "skips")) == 1


def test_the_benchmark_compares_equal_numbers_of_views(tmp_path):
    from rdm_solo.bench import views as bench_views

    assert [make() for make in bench_views.in_memory(Pipeline(32), n=6, batch=4)] == [12, 12]
    bench_views.write_jpegs(tmp_path, 3, 60, 80)
    made = [make() for make in bench_views.from_files(Pipeline(SIZE, blur=0.5), tmp_path, batch=2)]
    assert made == [6, 6, 6]
