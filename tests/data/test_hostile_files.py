"""Files that are no images, or ask for gigabytes; links; names that are no text; files that vanish.

Each is refused by its name, or skipped and named; nothing waits and no other program starts.
"""

from __future__ import annotations

import io
import logging
import os
import socket
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from support.drills import draws, record, tries
from support.image_files import SIZE, a_pair, epoch_of, loader, picture, write_tree

from rdm_solo import data
from rdm_solo.data import DataError, decoding, folders, image_files, images


def fifo(path: Path) -> None:
    os.mkfifo(path)


def a_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        here = os.getcwd()
        os.chdir(path.parent)  # its address has room for 107 bytes
        made.bind(path.name)
        os.chdir(here)


def unreadable(path: Path) -> None:
    """A regular file whose reading fails, also for root."""
    path.symlink_to("/proc/self/mem")


# What an image may turn into, and what is said of it.
SPECIAL = {
    "fifo": (fifo, "is a FIFO, not a file"),
    "socket": (a_socket, "is a socket, not a file"),
    "device": (lambda path: path.symlink_to("/dev/zero"), "is a device, not a file"),
    "folder": (lambda path: path.mkdir(), "is a folder, not a file"),
    "dangling": (
        lambda path: path.symlink_to("gone"),
        "cannot be read .No such file.*it is a link",
    ),
    "circle": (lambda path: path.symlink_to(path), "cannot be read .Too many levels.*is a link"),
}


@pytest.mark.parametrize("how", SPECIAL)
@pytest.mark.parametrize("labels", [True, False])
def test_what_is_no_file_is_refused_before_training(tmp_path, how, labels):
    make, says = SPECIAL[how]
    root = write_tree(tmp_path, train=2, val=1)
    path = root / "train" / "dog" / "00.jpg"
    path.unlink()
    make(path)
    says = f"^{path} {says}.*: repair or remove it, or set dataset.skip_broken=true"
    with pytest.raises(DataError, match=says) as refused:
        folders.folder(root, labels=labels)
    assert "\n" not in str(refused.value)
    assert len(folders.folder(root, labels=labels, skip_broken=True).train) == 6


CHANGES = {name: SPECIAL[name] for name in SPECIAL}
CHANGES["no permission"] = (unreadable, "cannot be read .(Input/output|Permission).*it is a link")
CHANGES["gone"] = (lambda path: None, "cannot be read .No such file")
CHANGES["cut short"] = (lambda path: path.write_bytes(b"\xff\xd8\xff"), "is no image|cannot be")


@pytest.mark.parametrize("how", CHANGES)
def test_an_image_that_changes_while_training_is_named_with_its_epoch(tmp_path, how):
    make, says = CHANGES[how]
    if how == "no permission" and not Path("/proc/self/mem").exists():
        pytest.skip("this system has no /proc/self/mem")
    root = write_tree(tmp_path, train=2, val=1)
    path = root / "train" / "dog" / "00.jpg"
    strict = loader(root, batch_size=6)
    source = {"image_size": SIZE, "workers": 0, "skip_broken": True}
    dataset = folders.folder(root, **source)
    skips, plain = (data.loader(dataset, "train", 6, views=views) for views in (a_pair(), None))
    whole = epoch_of(strict, 0)
    assert len(epoch_of(skips, 0)) == len(whole) == 1
    path.unlink()
    make(path)
    with pytest.raises(DataError, match=f"^{path} ({says}).* in epoch 3: repair"):
        epoch_of(strict, 2)
    assert not skips.skipped
    assert [len(batch[0]) for batch in epoch_of(skips, 2)] == [6]
    assert list(skips.skipped) == [str(path)]
    assert sum(len(y) for _, y in plain) == 5
    assert list(plain.skipped) == [str(path)]


def test_a_worker_does_not_wait_for_a_fifo_either(tmp_path):
    root = write_tree(tmp_path, train=2, val=1)
    batches = loader(root, batch_size=6, source={"workers": 1})
    path = root / "train" / "dog" / "00.jpg"
    path.unlink()
    fifo(path)
    with pytest.raises(DataError, match=f"^{path} is a FIFO"):
        epoch_of(batches)


def test_links_count_where_they_lie_and_circles_end(tmp_path, caplog):
    root = write_tree(tmp_path / "tree", classes=("cat", "dog"), train=2, val=1)
    outside = tmp_path / "elsewhere"
    outside.mkdir()
    picture(0).save(outside / "far.jpg")
    train = root / "train"
    (train / "cat" / "away.jpg").symlink_to(outside / "far.jpg")
    (train / "cat" / "more").symlink_to(outside)
    (train / "cat" / "self").symlink_to(train / "cat")
    (train / "cat" / "up").symlink_to(root)  # would bring in the dogs as cats
    (train / "cat" / ".#lock").symlink_to("user@host.1")  # what editors leave behind
    with caplog.at_level(logging.WARNING, "rdm_solo"):
        files = folders.folder(root).train
    assert names_of(files) == [
        *("cat/00.jpg", "cat/01.jpg", "cat/away.jpg", "cat/more/far.jpg"),
        *("dog/00.jpg", "dog/01.jpg"),
    ]
    assert files.labels.tolist() == [0] * 4 + [1] * 2
    assert not caplog.messages
    (train / "cat" / "not a cat.jpg").symlink_to(train / "dog" / "00.jpg")
    (root / "val" / "dog" / "seen").symlink_to(train / "dog")
    with caplog.at_level(logging.WARNING, "rdm_solo"):
        dataset = folders.folder(root)
    assert dataset.train.labels.tolist() == [0] * 5 + [1] * 2
    assert len(dataset.val) == 4
    (line,) = caplog.messages
    assert "warning: 2 link(s) lead from one class folder into another" in line
    assert f"{train / 'cat' / 'not a cat.jpg'} into {train / 'dog'}" in line
    assert f"{root / 'val' / 'dog' / 'seen'} into {train / 'dog'}" in line


def names_of(files):
    return [str(files.path(i).relative_to(files.root)) for i in range(len(files))]


@pytest.mark.parametrize("where", ["train", "train/cat"])
def test_a_link_to_a_folder_that_is_gone_is_refused(tmp_path, where):
    root = write_tree(tmp_path, train=1, val=1)
    link = root / where / "disk2"
    link.symlink_to("/mnt/not mounted")
    for skip in (False, True):  # a whole folder of images may be missing
        with pytest.raises(DataError, match=f"^{link} cannot be read .*it is a link"):
            folders.folder(root, skip_broken=skip)


def test_a_class_folder_that_is_another_ones_link_is_named(tmp_path, caplog):
    root = write_tree(tmp_path, classes=("cat", "dog"), train=1, val=1)
    (root / "train" / "eel").symlink_to("dog")
    (root / "val" / "eel").mkdir()
    picture(0).save(root / "val" / "eel" / "0.jpg")
    with caplog.at_level(logging.WARNING, "rdm_solo"):
        assert len(folders.folder(root).train) == 3
    assert f"{root / 'train' / 'eel'} into {root / 'train' / 'dog'}" in caplog.text


def test_names_that_are_no_text_are_read_and_shown_in_one_line(tmp_path, caplog):
    root = write_tree(tmp_path, classes=("cat", "dog"), train=1, val=1)
    odd = os.fsencode(root / "train" / "dog")
    strange = [
        b"\xff\xfe.jpg",
        b"two\nlines.png",
        b" .jpg",
        b"'; rm -rf $HOME.jpg",
        b"\x1b[31m.jpg",
    ]
    for i, name in enumerate(strange):
        with open(os.path.join(odd, name), "wb") as file:
            picture(i).save(file, "PNG" if name.endswith(b"png") else "JPEG")
    files = folders.folder(root).train
    assert len(files) == 7
    assert {os.path.basename(os.fsencode(files.path(i))) for i in range(7)} == {
        *strange,
        b"00.jpg",
    }
    for workers in (0, 1):
        assert len(epoch_of(loader(root, batch_size=7, source={"workers": workers}))) == 1
    for name in strange:
        with open(os.path.join(odd, name), "wb"):
            pass
        with pytest.raises(DataError, match=" is empty") as refused:
            epoch_of(loader(root, batch_size=7, source={"workers": 0}))
        assert str(refused.value).isprintable()
        assert str(refused.value).encode("utf-8")
        with open(os.path.join(odd, name), "wb") as file:
            picture(0).save(file, "JPEG")


def png(width: int, height: int, rows: bytes = b"") -> bytes:
    """A PNG of one bit a pixel whose header says that size; its rows are black by default."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        body = kind + content
        return struct.pack(">I", len(content)) + body + struct.pack(">I", zlib.crc32(body))

    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    packed = zlib.compress(rows or bytes((width + 7) // 8 + 1) * height, 9)
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        chunk(*part) for part in ((b"IHDR", header), (b"IDAT", packed), (b"IEND", b""))
    )


def jpeg(width: int, height: int) -> bytes:
    """A real JPEG whose header was changed to that size."""
    made = io.BytesIO()
    picture(0, 16, 16).save(made, "JPEG")
    content = bytearray(made.getvalue())
    at = content.index(b"\xff\xc0")
    content[at + 5 : at + 9] = struct.pack(">HH", height, width)
    return bytes(content)


def test_bombs_are_refused_by_their_headers(tmp_path):
    """144 million pixels in 17 kB take 1.4 GB to decode; memory may grow by 100 MB here."""
    resource = pytest.importorskip("resource")
    bombs = {"12000.png": png(12000, 12000), "12000.jpg": jpeg(12000, 12000)}
    bombs |= {"65000.jpg": jpeg(65000, 65000), "60000.png": png(60000, 60000, b"\0")}
    assert len(bombs["12000.png"]) < 18_000
    for name, content in bombs.items():
        (tmp_path / name).write_bytes(content)
    with (tmp_path / "sparse.jpg").open("wb") as file:
        file.truncate(1 << 40)
    size = "12000 x 12000 pixels; from 1 to 134217728 can be decoded"
    says = dict.fromkeys(bombs, "has more than 134217728 pixels, too many to decode")
    says |= {"12000.png": f"has {size}", "12000.jpg": f"has {size}"}
    says["sparse.jpg"] = f"has {1 << 40} bytes; images of at most {1 << 30} are read"
    status = Path("/proc/self/statm").read_text()
    used = int(status.split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    try:
        resource.setrlimit(resource.RLIMIT_AS, (used + 100_000_000, before[1]))
        for name, why in says.items():
            with pytest.raises(decoding.Unreadable) as refused:
                decoding.decode(image_files.open_image(tmp_path / name))
            assert str(refused.value) == why
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def test_the_bound_lies_above_the_largest_cameras(tmp_path, monkeypatch):
    assert 11648 * 8736 < image_files.MAX_PIXELS < 12000 * 12000
    monkeypatch.setattr(image_files, "MAX_PIXELS", 300)
    picture(0, 15, 20).save(tmp_path / "largest.png")
    picture(0, 15, 21).save(tmp_path / "larger.png")
    assert image_files.open_image(tmp_path / "largest.png").size == (20, 15)
    with pytest.raises(image_files.Unreadable, match="21 x 15 pixels"):
        image_files.open_image(tmp_path / "larger.png")


@pytest.mark.parametrize("shape", [(1, 1), (1, 10_000), (10_000, 1), (2, 3), (70, 9)])
@pytest.mark.parametrize("ending", ["jpg", "png"])
def test_images_of_any_shape_give_views(tmp_path, shape, ending):
    for i in range(2):
        picture(i, *shape).save(tmp_path / f"{i}.{ending}")
    ((_, crops, _),) = epoch_of(loader(tmp_path, batch_size=2, views=a_pair(rotate=0.2)))
    assert [tuple(crop.shape) for crop in crops] == [(2, 3, SIZE, SIZE)] * 2
    assert all(crop.isfinite().all() for crop in crops)
    reading = images.Reading(image_size=28, resize=32)
    clean = decoding.clean(image_files.open_image(tmp_path / f"0.{ending}"), reading)
    assert clean.shape == (3, 28, 28)


@pytest.mark.parametrize("turned", [False, True])
def test_a_long_image_is_evaluated_by_its_middle(turned):
    """Its central square is the same as that of the whole image resized, to a level."""
    pixels = np.array(picture(3, 24, 24 * 31))
    pixels = np.ascontiguousarray(pixels.transpose(1, 0, 2)) if turned else pixels
    reading = images.Reading(image_size=28, resize=32)
    got = decoding.clean(Image.fromarray(pixels), reading)
    whole = torch.from_numpy(pixels).permute(2, 0, 1)[None].double()
    size = (32 * 31, 32) if turned else (32, 32 * 31)
    whole = torch.nn.functional.interpolate(whole, size, mode="bilinear", antialias=True)[0]
    top, left = ((s - 28) // 2 for s in size)
    want = whole[:, top : top + 28, left : left + 28]
    assert (got.double() - want).abs().max() <= 1.5


def test_the_content_decides_and_no_other_program_starts(tmp_path, monkeypatch):
    """PNG, GIF and WebP in a .jpg are read; PostScript, which Pillow gives to Ghostscript, not."""
    ran = tmp_path / "ran"
    ghostscript = tmp_path / "gs"
    ghostscript.write_text(f"#!/bin/sh\ntouch {ran}\n")
    ghostscript.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    for kind in ("PNG", "GIF", "WEBP", "BMP", "TIFF"):
        picture(0, 20, 20).save(tmp_path / "x.jpg", kind)
        assert decoding.decode(image_files.open_image(tmp_path / "x.jpg")).shape == (3, 20, 20)
    for kind in ("EPS", "PDF", "ICO", "PCX"):
        picture(0, 32, 32).save(tmp_path / "x.jpg", kind)
        with pytest.raises(decoding.Unreadable, match=r"^is no image$"):
            decoding.decode(image_files.open_image(tmp_path / "x.jpg"))
    assert not ran.exists()


@pytest.mark.parametrize("kind", ["PNG", "GIF", "WEBP", "TIFF"])
def test_of_an_animation_the_first_picture_is_read(tmp_path, kind):
    path = tmp_path / "x.png"
    pictures = [picture(i, 20, 24) for i in range(3)]
    lossless = {"lossless": True} if kind == "WEBP" else {}
    pictures[0].save(path, kind, save_all=True, append_images=pictures[1:], **lossless)
    assert Image.open(path).n_frames == 3
    got = decoding.decode(image_files.open_image(path)).permute(1, 2, 0)
    want = np.asarray(pictures[0] if kind != "GIF" else Image.open(path).convert("RGB"))
    assert np.array_equal(got, want)


KINDS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "PPM", "GIF")


@pytest.mark.drill
def test_spoilt_files_give_pixels_or_a_reason(tmp_path, recwarn):
    """Bytes of real images changed, cut out, doubled or cut off: pixels, or one sentence."""
    rng, survived = draws("spoilt images"), 0
    tried = tries(150, 6000)
    whole = []
    for kind in KINDS:
        for mode in ("RGB", "L", "P", "CMYK") if kind in ("TIFF", "JPEG") else ("RGB", "L"):
            made, options = io.BytesIO(), {"compression": "tiff_lzw"} if kind == "TIFF" else {}
            if kind == "JPEG" and mode == "P":
                mode, options = "RGB", {"progressive": True}
            picture(len(whole), 30, 40, mode).save(made, kind, **options)
            whole.append(made.getvalue())
    path, reading = tmp_path / "x.jpg", images.Reading(image_size=SIZE)
    boxes = torch.tensor([[0, 0, 1, 1]])
    outcomes = {"read": 0, "refused": 0}
    for _ in range(tried):
        content = bytearray(rng.choice(whole))
        for _ in range(rng.choice((1, 1, 2, 8))):
            at = rng.randrange(len(content)) if rng.random() < 0.5 else rng.randrange(64)
            change = rng.randrange(4)
            if change == 0:
                content[at % len(content)] = rng.randrange(256)
            elif change == 1:
                content[at : at + rng.randrange(1, 9)] = rng.randbytes(rng.randrange(9))
            elif change == 2:
                content[at:at] = content[at : at + rng.randrange(200)]
            elif rng.random() < 0.3:
                del content[max(at, 1) :]
            content = content or bytearray(b"\0")
        path.write_bytes(content)
        try:
            image = image_files.open_image(path)
            assert image.width * image.height <= image_files.MAX_PIXELS
            (crop,) = decoding.cut_views(image, boxes, [SIZE], reading)
            assert crop.shape == (3, SIZE, SIZE)
            assert decoding.clean(image_files.open_image(path), reading).shape == (3, SIZE, SIZE)
            outcomes["read"] += 1
            survived += 1
        except decoding.Unreadable as why:
            outcomes["refused"] += 1
            survived += str(why).isprintable()
    assert min(outcomes.values()) > tried / 10, outcomes
    assert not recwarn.list
    record("spoilt image files", tried, survived)
