"""Folders of images: what is found in them, and what is refused."""

import hashlib
import logging
import re

import pytest
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from support.image_files import loader, picture, write_tree
from support.small_runs import configure
from torchvision.datasets import ImageFolder

from rdm_solo.data import DataError, folders


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    return write_tree(tmp_path_factory.mktemp("tree"))


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
    with pytest.raises(DataError, match=f"the folder {train / names[7]} holds no images"):
        folders.imagenet100(tmp_path / "copy")
    (train / names[7]).rmdir()
    with pytest.raises(DataError, match=rf"{train} lacks 1 of 100 class folders \({names[7]}\)"):
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
    assert re.search(f"{broken} is a file: .*unpack it first", refusal(broken))


def test_missing_parts_are_named(tmp_path, tree):
    write_tree(tmp_path, train=1, val=1)
    assert f"{tree / 'valid'} does not exist" in refusal(tree, val="valid")
    assert f"{tree / 'pretrain'} does not exist" in refusal(tree, train="pretrain")
    (tmp_path / "train").rename(tmp_path / "training")
    message = refusal(tmp_path)
    assert f"{tmp_path / 'train'} does not exist" in message
    assert "training" in message
    for load in (folders.imagenet, folders.imagenet100):
        with pytest.raises(DataError, match=rf"root={tmp_path} has no folder 'train'"):
            load(tmp_path)
    (tmp_path / "training").rename(tmp_path / "train")
    (tmp_path / "val").rename(tmp_path / "validation")
    with pytest.raises(DataError, match=rf"has no folder 'val' \({tmp_path / 'val'} does"):
        folders.imagenet(tmp_path)


def test_empty_folders_are_named(tmp_path):
    (tmp_path / "a.xcf").write_bytes(b"")
    assert f"{tmp_path} holds no images (they end in .jpg .jpeg" in refusal(tmp_path)
    root = write_tree(tmp_path / "tree", train=1, val=1)
    (root / "train" / "ant").mkdir()
    (root / "val" / "ant").mkdir()
    assert f"{root / 'train' / 'ant'} holds no images" in refusal(root)


def test_classes_that_differ_are_named(tmp_path):
    write_tree(tmp_path, train=1, val=1)
    (tmp_path / "val" / "eel").rename(tmp_path / "val" / "elk")
    assert f"{tmp_path / 'train'} lacks 1 of 4 class folders (elk)" in refusal(tmp_path)
    (tmp_path / "train" / "eel").rename(tmp_path / "train" / "elk")
    (tmp_path / "train" / "emu").mkdir()
    picture(0).save(tmp_path / "train" / "emu" / "00.jpg")
    assert f"{tmp_path / 'val'} lacks 1 of 4 class folders (emu)" in refusal(tmp_path)
    (tmp_path / "train" / "emu" / "00.jpg").unlink()
    (tmp_path / "train" / "emu").rmdir()
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


def test_a_word_in_a_config_is_no_switch(tree):
    options = [f"dataset.root={tree}", "dataset.labels=off"]
    with pytest.raises(InstantiationException) as caught:
        instantiate(configure("dataset=folder", *options).dataset.source)
    assert "dataset.labels must be true or false, or null, got" in str(caught.value.__cause__)
