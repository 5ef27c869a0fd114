"""Folders of images: what is read from them, and what is refused."""

import hashlib
import os
import re
from pathlib import Path

import pytest
from support.image_files import loader, picture, write_tree
from torchvision.datasets import ImageFolder

from rdm_solo.data import DataError, folders


def paths(files):
    return [files.name(i) for i in range(len(files))]


def test_the_hundred_classes_are_those_of_contrastive_multiview_coding():
    names = folders.imagenet100_classes()
    # The list's own order, as its authors published it.
    text = Path(folders.__file__).with_name("imagenet100.txt").read_text()
    published = re.findall(r"^n.*\n", text, re.MULTILINE)
    assert names == sorted(line.strip() for line in published)
    digest = hashlib.md5("".join(published).encode())
    assert digest.hexdigest() == "9974508e5d4cc0098b70e8b6a0fe6067"


@pytest.mark.parametrize("part", ["train", "val"])
def test_samples_and_labels_are_torchvisions(tree, part):
    dataset = folders.folder(tree)
    assert dataset.num_classes == 3
    assert dataset.labelled
    files = getattr(dataset, part)
    expected = ImageFolder(str(tree / part))
    assert paths(files) == [path for path, _ in expected.samples]
    assert files.labels.tolist() == expected.targets


def test_nested_folders_links_and_odd_names(tmp_path):
    classes = "cat", "dog"
    root = write_tree(tmp_path / "tree", classes, train=2, val=1)
    train = root / "train"
    outside = tmp_path / "elsewhere"
    for folder in (train / "dog" / "more" / "still more", train / ".cache", outside):
        folder.mkdir(parents=True)
    picture(0).save(train / "dog" / "more" / "still more" / "ä b.jpeg")
    odd = train / "dog" / "two\nlines.bmp"
    picture(1).save(odd)
    picture(2).save(outside / "far.jpg")
    (train / "cat" / "more").symlink_to(outside)
    (train / "cat" / "up").symlink_to(root)  # would bring in the dogs as cats
    (train / "cat" / ".#lock").symlink_to("user@host.1")  # what editors leave behind
    files = folders.folder(root).train
    names = [os.path.relpath(path, train) for path in paths(files)]
    assert names == [
        "cat/00.jpg",
        "cat/01.jpg",
        "cat/more/far.jpg",
        "dog/00.jpg",
        "dog/01.jpg",
        "dog/two\nlines.bmp",
        "dog/more/still more/ä b.jpeg",
    ]
    assert files.labels.tolist() == [0, 0, 0, 1, 1, 1, 1]
    odd.write_bytes(b"")
    with pytest.raises(DataError, match=r"two\\nlines\.bmp"):
        list(loader(root, batch_size=7))


def write_unread(root, classes):
    """Write one file per class that no test decodes."""
    for part in ("train", "val"):
        for name in classes:
            folder = root / part / name
            folder.mkdir(parents=True)
            (folder / f"{name}_1.JPEG").touch()


def test_imagenet_has_1000_classes(tmp_path):
    write_unread(tmp_path, [f"n{i:08}" for i in range(1000)])
    dataset = folders.imagenet(tmp_path)
    assert (dataset.num_classes, len(dataset.val)) == (1000, 1000)
    (tmp_path / "train" / "n00000007").rename(tmp_path / "elsewhere")
    with pytest.raises(DataError, match="999"):
        folders.imagenet(tmp_path)


def test_imagenet100_is_taken_from_imagenet(tmp_path):
    names = folders.imagenet100_classes()
    write_unread(tmp_path, [*names, "n00000000", "n99999999"])
    dataset = folders.imagenet100(tmp_path)
    assert (dataset.num_classes, len(dataset.val)) == (100, 100)
    for path, name in zip(paths(dataset.train), names, strict=True):
        assert Path(path).parent.name == name
    assert dataset.train.labels.tolist() == list(range(100))


def test_without_labels_every_image_counts(tmp_path):
    root = write_tree(tmp_path, train=2, val=1)
    dataset = folders.folder(root, labels=False)
    assert dataset.val is None
    assert not dataset.labelled
    assert dataset.num_classes == 1
    assert dataset.train.labels.tolist() == [0] * 6
    # Images beside the class folders mean that these are no classes.
    picture(0).save(root / "train" / "between.png")
    assert len(folders.folder(root).train) == 7


@pytest.mark.parametrize("load", [folders.folder, folders.imagenet, folders.imagenet100])
@pytest.mark.parametrize("name", ["imagenet.tar", "parts"])
def test_a_missing_folder_is_named(tmp_path, load, name):
    (tmp_path / "imagenet.tar").touch()
    (tmp_path / "parts" / "val").mkdir(parents=True)
    with pytest.raises(DataError, match=f"^{tmp_path / name}.* is not a folder"):
        load(tmp_path / name)


def break_link(root):
    link = root / "train" / "cat" / "disk2"
    link.symlink_to("/mnt/not mounted")
    return link


def rename_a_class(root):
    (root / "val" / "eel").rename(root / "val" / "elk")
    return root / "train"


def add_an_empty_class(root):
    for part in ("train", "val"):
        (root / part / "elk").mkdir()
    return root / "train" / "elk"


@pytest.mark.parametrize("spoil", [break_link, rename_a_class, add_an_empty_class])
def test_a_folder_that_cannot_be_a_part_is_named(tmp_path, spoil):
    path = spoil(write_tree(tmp_path, train=1, val=1))
    with pytest.raises(DataError, match=f"{path} "):
        folders.folder(tmp_path)


def test_an_empty_folder_without_labels_is_named(tmp_path):
    with pytest.raises(DataError, match=str(tmp_path)):
        folders.folder(tmp_path, labels=False)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("val", "valid"),
        ("resize", 100),
        ("channels", 4),
        ("labels", "no"),
        ("skip_broken", 1),
    ],
)
def test_an_option_out_of_range_is_named(tree, option, value):
    with pytest.raises(ValueError, match=option):
        folders.folder(tree, **{option: value})
