"""Folders of images: what is found in them, and what is refused."""

import hashlib
from pathlib import Path

import pytest
from support.image_files import loader, picture, write_tree
from torchvision.datasets import ImageFolder

from rdm_solo.data import DataError, folders


def paths(files):
    return [files.name(i) for i in range(len(files))]


def test_the_hundred_classes_are_those_of_contrastive_multiview_coding():
    names = folders.imagenet100_classes()
    assert len(set(names)) == 100
    assert names == sorted(names)
    # The list's own order, as its authors published it.
    lines = Path(folders.__file__).with_name("imagenet100.txt").read_text().splitlines(True)
    published = "".join(line for line in lines if line.startswith("n"))
    assert hashlib.md5(published.encode()).hexdigest() == "9974508e5d4cc0098b70e8b6a0fe6067"


@pytest.mark.parametrize("part", ["train", "val"])
def test_samples_and_labels_are_torchvisions(tree, part):
    dataset = folders.folder(tree)
    assert (dataset.num_classes, dataset.labelled) == (3, True)
    files, expected = getattr(dataset, part), ImageFolder(str(tree / part))
    assert paths(files) == [path for path, _ in expected.samples]
    assert files.labels.tolist() == expected.targets


def test_nested_folders_links_and_odd_names(tmp_path):
    root = write_tree(tmp_path / "tree", classes=("cat", "dog"), train=2, val=1)
    train = root / "train"
    outside = tmp_path / "elsewhere"
    for folder in (train / "dog" / "more" / "still more", train / ".cache", outside):
        folder.mkdir(parents=True)
    picture(0).save(train / "dog" / "more" / "still more" / "ä b.jpeg")
    picture(1).save(train / "dog" / "two\nlines.bmp")
    picture(2).save(outside / "far.jpg")
    (train / "cat" / "more").symlink_to(outside)
    (train / "cat" / "up").symlink_to(root)  # would bring in the dogs as cats
    (train / "cat" / ".#lock").symlink_to("user@host.1")  # what editors leave behind
    files = folders.folder(root).train
    assert [str(Path(path).relative_to(train)) for path in paths(files)] == [
        "cat/00.jpg",
        "cat/01.jpg",
        "cat/more/far.jpg",
        "dog/00.jpg",
        "dog/01.jpg",
        "dog/two\nlines.bmp",
        "dog/more/still more/ä b.jpeg",
    ]
    assert files.labels.tolist() == [0] * 3 + [1] * 4
    assert len(list(loader(root, batch_size=7))) == 1
    (train / "dog" / "two\nlines.bmp").write_bytes(b"")
    with pytest.raises(DataError, match=r"two\\nlines\.bmp"):
        list(loader(root, batch_size=7))


def test_a_link_to_a_folder_that_is_gone_is_refused(tmp_path):
    root = write_tree(tmp_path, train=1, val=1)
    link = root / "train" / "cat" / "disk2"
    link.symlink_to("/mnt/not mounted")
    with pytest.raises(DataError, match=f"^{link} cannot be read"):
        folders.folder(root)


def write_unread(root, classes):
    """Write one file per class that no test decodes."""
    for part in ("train", "val"):
        for name in classes:
            (root / part / name).mkdir(parents=True)
            (root / part / name / f"{name}_1.JPEG").write_bytes(b"unread")


def test_imagenet_has_1000_classes(tmp_path):
    write_unread(tmp_path, [f"n{i:08}" for i in range(1000)])
    dataset = folders.imagenet(tmp_path)
    assert (dataset.num_classes, len(dataset.val)) == (1000, 1000)
    assert (dataset.mean, dataset.std) == ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    (tmp_path / "train" / "n00000007").rename(tmp_path / "elsewhere")
    with pytest.raises(DataError, match="999"):
        folders.imagenet(tmp_path)


@pytest.mark.parametrize("others", [["n00000000", "n99999999"], []])
def test_imagenet100_is_taken_from_imagenet_or_from_a_copy(tmp_path, others):
    names = folders.imagenet100_classes()
    write_unread(tmp_path, names + others)
    dataset = folders.imagenet100(tmp_path)
    assert (dataset.num_classes, len(dataset.val)) == (100, 100)
    assert [Path(path).parent.name for path in paths(dataset.train)] == names
    assert dataset.train.labels.tolist() == list(range(100))
    (tmp_path / "train" / names[7]).rename(tmp_path / "elsewhere")
    with pytest.raises(DataError, match=names[7]):
        folders.imagenet100(tmp_path)


@pytest.mark.parametrize("labels", [None, False])
def test_without_labels_every_image_counts(tmp_path, labels):
    root = write_tree(tmp_path, train=2, val=1)
    if labels is None:
        picture(0).save(root / "train" / "between.png")
    dataset = folders.folder(root, labels=labels)
    assert (dataset.num_classes, dataset.val, dataset.labelled) == (1, None, False)
    assert dataset.train.labels.tolist() == [0] * (7 if labels is None else 6)


@pytest.mark.parametrize("load", [folders.folder, folders.imagenet, folders.imagenet100])
@pytest.mark.parametrize("name", ["gone", "imagenet.tar", "parts"])
def test_a_missing_folder_is_named(tmp_path, load, name):
    (tmp_path / "imagenet.tar").write_bytes(b"half an archive")
    (tmp_path / "parts" / "val").mkdir(parents=True)
    with pytest.raises(DataError, match=f"^{tmp_path / name}.* is not a folder"):
        load(tmp_path / name)


def test_a_missing_validation_folder_is_named(tree):
    with pytest.raises(DataError, match="valid"):
        folders.folder(tree, val="valid")


@pytest.mark.parametrize(
    ("labels", "message"), [(False, "holds no images"), (True, "has no class folder")]
)
def test_an_empty_folder_is_named(tmp_path, labels, message):
    with pytest.raises(DataError, match=f"{tmp_path} {message}"):
        folders.folder(tmp_path, labels=labels)


def test_classes_that_differ_or_are_empty_are_named(tmp_path):
    root = write_tree(tmp_path, train=1, val=1)
    (root / "val" / "eel").rename(root / "val" / "elk")
    with pytest.raises(DataError, match=f"{root / 'train'} lacks 1 of 4"):
        folders.folder(root)
    (root / "train" / "elk").mkdir()
    (root / "val" / "eel").mkdir()
    with pytest.raises(DataError, match=f"{root / 'train' / 'elk'} holds no images"):
        folders.folder(root)


@pytest.mark.parametrize(
    ("option", "value"), [("resize", 100), ("channels", 4), ("labels", "no"), ("skip_broken", 1)]
)
def test_an_option_out_of_range_is_named(tree, option, value):
    with pytest.raises(ValueError, match=option):
        folders.folder(tree, **{option: value})
