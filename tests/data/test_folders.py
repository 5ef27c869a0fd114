"""Folders of images: what is found in them, and what is refused."""

import hashlib
from pathlib import Path

import pytest
from support.image_files import loader, picture, write_tree
from torchvision.datasets import ImageFolder

from rdm_solo.data import DataError, folders


def names_of(files):
    root = files.source.root
    return [str(Path(files.name(i)).relative_to(root)) for i in range(len(files))]


def refuses(says, load, root, **options):
    with pytest.raises(DataError) as caught:
        load(root, **options)
    assert says in str(caught.value)


def test_the_hundred_classes_are_those_of_contrastive_multiview_coding():
    names = folders.imagenet100_classes()
    assert len(set(names)) == 100
    assert names == sorted(names)
    # The list's own order, as its authors published it.
    lines = (Path(folders.__file__).parent / "imagenet100.txt").read_text().split("\n")
    published = "\n".join(line for line in lines if line.startswith("n")) + "\n"
    assert hashlib.md5(published.encode()).hexdigest() == "9974508e5d4cc0098b70e8b6a0fe6067"


def test_samples_and_labels_are_torchvisions(tree):
    dataset = folders.folder(tree)
    assert (dataset.num_classes, dataset.labelled) == (3, True)
    for part, files in (("train", dataset.train), ("val", dataset.val)):
        want = ImageFolder(str(tree / part))
        assert [files.name(i) for i in range(len(files))] == [path for path, _ in want.samples]
        assert files.labels.tolist() == want.targets


def test_nested_folders_links_and_odd_names(tmp_path):
    root = write_tree(tmp_path / "tree", classes=("cat", "dog"), train=2, val=1)
    train, outside = root / "train", tmp_path / "elsewhere"
    for folder in (train / "dog" / "more" / "still more", outside):
        folder.mkdir(parents=True)
    picture(0).save(train / "dog" / "more" / "still more" / "ä b.jpeg")
    picture(1).save(train / "dog" / "two\nlines.bmp")
    picture(2).save(outside / "far.jpg")
    (train / "cat" / "more").symlink_to(outside)
    (train / "cat" / "up").symlink_to(root)  # would bring in the dogs as cats
    (train / "cat" / ".#lock").symlink_to("user@host.1")  # what editors leave behind
    (train / ".cache").mkdir()
    files = folders.folder(root).train
    assert names_of(files) == [
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
    with pytest.raises(DataError, match=r"two\\nlines\.bmp is not an image"):
        list(loader(root, batch_size=7))


def test_a_link_to_a_folder_that_is_gone_is_refused(tmp_path):
    root = write_tree(tmp_path, train=1, val=1)
    link = root / "train" / "cat" / "disk2"
    link.symlink_to("/mnt/not mounted")
    with pytest.raises(DataError, match=f"^{link} cannot be read"):
        folders.folder(root)


def test_imagenet100_is_taken_from_imagenet_or_from_a_copy(tmp_path):
    names = folders.imagenet100_classes()
    others = [f"n{i:08}" for i in range(900)]
    for root, classes in (("all", names + others), ("copy", names)):
        for part in ("train", "val"):
            for name in classes:
                (tmp_path / root / part / name).mkdir(parents=True)
                (tmp_path / root / part / name / f"{name}_1.JPEG").write_bytes(b"unread")
        dataset = folders.imagenet100(tmp_path / root)
        assert (dataset.num_classes, len(dataset.val)) == (100, 100)
        assert names_of(dataset.train) == [f"{name}/{name}_1.JPEG" for name in names]
        assert dataset.train.labels.tolist() == list(range(100))
    everything = folders.imagenet(tmp_path / "all")
    assert (everything.num_classes, len(everything.val)) == (1000, 1000)
    assert (everything.mean, everything.std) == ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    refuses("has 100 class folders", folders.imagenet, tmp_path / "copy")
    (tmp_path / "copy" / "train" / names[7]).rename(tmp_path / "elsewhere")
    refuses(f"lacks 1 of 100 class folders ({names[7]})", folders.imagenet100, tmp_path / "copy")


def test_without_labels_every_image_counts(tmp_path):
    write_tree(tmp_path, train=2, val=1)
    (tmp_path / "flat").mkdir()
    for i in range(4):
        picture(i).save(tmp_path / "flat" / f"{i}.png")
    for root, options, n in ((tmp_path / "flat", {}, 4), (tmp_path, {"labels": False}, 6)):
        dataset = folders.folder(root, **options)
        assert (dataset.num_classes, dataset.val, dataset.labelled) == (1, None, False)
        assert dataset.train.labels.tolist() == [0] * n


def test_missing_folders_are_named(tmp_path, tree):
    (tmp_path / "imagenet.tar").write_bytes(b"half an archive")
    write_tree(tmp_path / "parts", train=1, val=1)
    (tmp_path / "parts" / "train").rename(tmp_path / "parts" / "training")
    for load in (folders.folder, folders.imagenet, folders.imagenet100):
        refuses(f"{tmp_path / 'gone'} is not a folder: set dataset.root", load, tmp_path / "gone")
        refuses("imagenet.tar is not a folder", load, tmp_path / "imagenet.tar")
        refuses(f"{tmp_path / 'parts' / 'train'} is not a folder", load, tmp_path / "parts")
    refuses("valid is not a folder: set dataset.val", folders.folder, tree, val="valid")


def test_empty_folders_and_classes_that_differ_are_named(tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    refuses(f"{empty} holds no images (they end in .jpg", folders.folder, empty, labels=False)
    refuses(f"{empty} has no class folder", folders.folder, empty, labels=True)
    root = write_tree(tmp_path / "tree", train=1, val=1)
    (root / "val" / "eel").rename(root / "val" / "elk")
    refuses(f"{root / 'train'} lacks 1 of 4 class folders (elk)", folders.folder, root)
    (root / "train" / "elk").mkdir()
    (root / "val" / "eel").mkdir()
    refuses(f"{root / 'train' / 'elk'} holds no images", folders.folder, root)


@pytest.mark.parametrize("option", [{"resize": 100}, {"channels": 4}, {"labels": "no"}])
def test_an_option_out_of_range_is_named(tree, option):
    with pytest.raises(ValueError, match=rf"dataset\.{next(iter(option))} must be "):
        folders.folder(tree, **option)
