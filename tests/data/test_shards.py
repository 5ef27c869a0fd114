"""Tar files of images: the same batches as of the folder that they were written from."""

import http.server
import io
import os
import re
import sys
import tarfile
import threading

import pytest
import torch
from hydra.utils import instantiate
from support.image_files import (
    SIZE,
    a_pair,
    by_sample,
    epoch_of,
    loader,
    picture,
    same,
    spoil,
    write_tree,
)
from support.small_runs import SMALL, configure, rows, run

from rdm_solo import data
from rdm_solo.data import DataError, remote, tar_files, tar_index
from rdm_solo.shards import entry
from rdm_solo.shards.writing import write_part

READING = {"image_size": SIZE, "workers": 0}


def written(tree, out, size=4000, **options):
    """Shards of a folder, of a few images each."""
    source = data.folder(tree, **READING, **options)
    out.mkdir()
    for part, files in (("train", source.train), ("val", source.val)):
        if files is not None:
            assert write_part(files, out, part, source.labelled, size) > 1
    return out


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    return write_tree(tmp_path_factory.mktemp("tree"))


@pytest.fixture(scope="module")
def out(tree, tmp_path_factory):
    return written(tree, tmp_path_factory.mktemp("shards") / "out")


def batches_of(root, part="train", batch_size=8, source=None, **options):
    made = data.shards(root, **READING | (source or {}))
    views = None if part == "val" else a_pair()
    return data.loader(made, part, batch_size, **{"views": views} | options)


def write_tar(path, members):
    """A tar file by tarfile alone: names, and bytes or pictures."""
    with tarfile.open(path, "w") as file:
        for name, content in members:
            if not isinstance(content, bytes):
                stream = io.BytesIO()
                content.save(stream, "PNG")
                content = stream.getvalue()
            head = tarfile.TarInfo(name)
            head.size = len(content)
            file.addfile(head, io.BytesIO(content))
    return path


# --- the same as a folder ---------------------------------------------------------------------


def test_batches_are_those_of_the_folder(tree, out):
    for epoch in (0, 3):
        same(epoch_of(batches_of(out), epoch), epoch_of(loader(tree), epoch))
    for (x, labels), (want, their_labels) in zip(
        batches_of(out, "val"), loader(tree, "val"), strict=True
    ):
        assert torch.equal(x, want)
        assert torch.equal(labels, their_labels)


def test_workers_change_nothing(out):
    want = epoch_of(batches_of(out), 1)
    same(epoch_of(batches_of(out, source={"workers": 2}), 1), want)


@pytest.mark.parametrize("world", [2, 3])
def test_processes_get_disjoint_parts_of_one_length(out, world):
    alone = by_sample(epoch_of(batches_of(out, batch_size=5 * world), 2))
    parts = [epoch_of(batches_of(out, batch_size=5), 2, rank, world) for rank in range(world)]
    numbers = [[i for indices, *_ in part for i in indices.tolist()] for part in parts]
    assert len({len(part) for part in numbers}) == 1
    together = [number for part in numbers for number in part]
    assert len(set(together)) == len(together) == len(alone)
    for part in parts:
        for number, views in by_sample(part).items():
            assert torch.equal(views, alone[number])


def test_webdataset_reads_what_is_written(tree, out):
    webdataset = pytest.importorskip("webdataset")
    tars = sorted(map(str, out.glob("train-*.tar")))
    samples = list(webdataset.WebDataset(tars, shardshuffle=False))
    files = data.folder(tree, **READING).train
    assert [int(sample["cls"]) for sample in samples] == files.labels.tolist()
    for number, sample in enumerate(samples):
        assert sample.get("jpg", sample.get("png")) == files.path(number).read_bytes()


def test_few_tar_files_stay_open(out, monkeypatch):
    monkeypatch.setattr(tar_files, "MOST_OPEN", 2)
    files = data.shards(out, **READING).train
    assert len(files.tars) > 3
    before = len(os.listdir("/proc/self/fd")) if sys.platform == "linux" else 0
    same_again = [files.content(i) for i in (*range(len(files)), 0, 5)]
    assert same_again[-2:] == [same_again[0], same_again[5]]
    if sys.platform == "linux":
        assert len(os.listdir("/proc/self/fd")) <= before + 2


@pytest.mark.parametrize("how", ["truncated", "empty", "no image", "garbage"])
def test_broken_images_follow_the_rules_of_a_folder(tmp_path, how):
    root = write_tree(tmp_path / "tree", train=6, val=4)
    for path in ("train/dog/01.jpg", "val/dog/02.png"):
        spoil(root / path, how)
    out = written(root, tmp_path / "out")
    for part in ("train", "val"):
        with pytest.raises(DataError) as of_folder:
            list(loader(root, part, drop_last=False))
        with pytest.raises(DataError, match=r"out/(train|val)-\d{6}\.tar/dog/0[12]\.") as of_shards:
            list(batches_of(out, part, drop_last=False))
        same_words = [str(e.value).split("dog/")[1] for e in (of_folder, of_shards)]
        assert same_words[0] == same_words[1]
        skipping = {"skip_broken": True}
        theirs = loader(root, part, source=skipping, drop_last=False)
        ours = batches_of(out, part, source=skipping, drop_last=False)
        for a, b in zip(theirs, ours, strict=True):
            assert torch.equal(a[-1], b[-1])
            if part == "train":
                same([a], [b])
        assert len(ours.skipped) == len(theirs.skipped) == 1


# --- runs -------------------------------------------------------------------------------------

TRAIN = [option for option in SMALL if not option.startswith("dataset")]
TRAIN += ["dataset=shards", f"dataset.image_size={SIZE}", "batch_size=10", "dataset.workers=0"]


def test_a_run_goes_on_exactly_where_it_stopped(out, tmp_path):
    last = f"{len(list(out.glob('train-*.tar'))) - 1:06}"  # a run's own config has a range, too
    options = [*TRAIN, f"dataset.root={out}", f"dataset.train='train-{{000000..{last}}}.tar'"]
    options += ["knn.k=5"]
    run(tmp_path / "whole", *options, "max_epochs=2")
    run(tmp_path / "parts", *options, "max_epochs=1")
    run(tmp_path / "parts", *options, "max_epochs=2", f"resume={tmp_path / 'parts'}")
    assert rows(tmp_path / "parts") == rows(tmp_path / "whole")


def test_the_config_reaches_its_source(tmp_path):
    cfg = configure("dataset=shards", f"dataset.root={tmp_path / 'gone'}")
    with pytest.raises(Exception, match=r"train=train-\*\.tar: there is no shard .*gone"):
        instantiate(cfg.dataset.source)


# --- the index --------------------------------------------------------------------------------


def test_the_index_is_made_once_and_anew_for_another_file(tmp_path, monkeypatch):
    tar = write_tar(tmp_path / "train-0.tar", [("a.png", picture(0)), ("a.cls", b"1\n")])
    first = tar_index.read_index(tar)
    assert first.labels.tolist() == [1]
    monkeypatch.setattr(tar_index, "_pass_over", None)
    assert tar_index.read_index(tar).names.tolist() == [b"a.png"]
    monkeypatch.undo()
    size = tar.stat().st_size
    write_tar(tar, [("b.png", picture(0)), ("b.cls", b"2\n")])
    assert tar.stat().st_size == size
    assert tar_index.read_index(tar).names.tolist() == [b"b.png"]


def test_the_index_is_made_anew_for_a_file_that_ends_otherwise(tmp_path):
    for name in ("b.png", "c.png"):
        tar = write_tar(tmp_path / "train-0.tar", [("a.png", picture(0)), (name, picture(1))])
        assert tar_index.read_index(tar).names.tolist() == [b"a.png", name.encode()]


@pytest.mark.parametrize("content", [b"", b"no zip", b"PK\x03\x04 cut off"])
def test_a_damaged_index_is_made_anew(tmp_path, content):
    tar = write_tar(tmp_path / "train-0.tar", [("a.png", picture(0)), ("a.cls", b"1")])
    beside = tmp_path / "train-0.index.npz"
    beside.write_bytes(content)
    assert len(tar_index.read_index(tar).names) == 1
    assert beside.read_bytes() != content


def test_a_folder_that_cannot_be_written_to_is_read(tmp_path, monkeypatch):
    write_tar(tmp_path / "train-0.tar", [("a.png", picture(0)), ("b.png", picture(1))])

    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tar_index, "_save", refuse)
    assert len(data.shards(tmp_path, **READING).train) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["train-0.tar"]


def test_what_is_no_image_and_no_class_number_is_left_out(tmp_path):
    members = [
        ("deep/a.b/x.png", picture(0)),
        ("deep/a.b/x.seg.png", picture(1)),
        ("deep/a.b/x.json", b"{}"),
        ("deep/a.b/.png", picture(2)),
        ("y.JPEG", picture(3)),
    ]
    write_tar(tmp_path / "train-0.tar", members)
    files = data.shards(tmp_path, **READING).train
    assert files.names.tolist() == [b"deep/a.b/x.png", b"y.JPEG"]
    assert files.labels.tolist() == [0, 0]


def cut(tar, n):
    tar.write_bytes(tar.read_bytes()[:n])


def overwrite(tar, at):
    content = bytearray(tar.read_bytes())
    content[at : at + 512] = b"x" * 512
    tar.write_bytes(bytes(content))


BAD = {
    "is cut off or damaged": lambda tar: cut(tar, 1024 + 512 * -(-_size(tar) // 512)),
    "is no whole, uncompressed tar file": lambda tar: cut(tar, 700),
    "is cut off or damaged after": lambda tar: overwrite(tar, 512 + 512 * -(-_size(tar) // 512)),
    "holds no images": lambda tar: write_tar(tar, [("a.txt", b"")]),
    "has two images of the sample a": lambda tar: write_tar(
        tar, [("a.png", picture(0)), ("a.jpg", picture(0))]
    ),
    "has 'cat' in a.cls, not a class number": lambda tar: write_tar(
        tar, [("a.png", picture(0)), ("a.cls", b"cat")]
    ),
    "uncompressed tar file": lambda tar: tarfile.open(tar, "w:gz").close(),
}


def _size(tar):
    with tarfile.open(tar) as file:
        return file.next().size


@pytest.mark.parametrize("says", BAD)
def test_a_shard_that_is_not_whole_is_named(tmp_path, says):
    tar = write_tar(
        tmp_path / "train-0.tar", [("a.png", picture(0)), ("a.cls", b"1"), ("b.png", picture(1))]
    )
    BAD[says](tar)
    with pytest.raises(DataError, match=rf"train-0\.tar .*{says}.*copy or write it again"):
        data.shards(tmp_path, **READING)


def test_a_shard_that_becomes_shorter_is_named(tmp_path):
    members = [(f"{i}.png", picture(i)) for i in range(4)]
    tar = write_tar(tmp_path / "train-0.tar", members)
    batches = batches_of(tmp_path, batch_size=4)
    cut(tar, 600)
    with pytest.raises(DataError, match=r"train-0\.tar/\d\.png lies beyond the end of its shard"):
        list(batches)


# --- which shards, which labels ---------------------------------------------------------------


def test_ranges_and_stars_name_shards(out):
    whole = len(data.shards(out, **READING).train)
    first = data.shards(out, train="train-{000000..000001}.tar", val="val-000000.tar", **READING)
    assert [tar.name for tar in first.train.tars] == ["train-000000.tar", "train-000001.tar"]
    assert len(first.train) < whole
    absolute = data.shards("nowhere", train=f"{out}/train-00000[01].tar", **READING)
    assert absolute.train.names.tolist() == first.train.names.tolist()
    with pytest.raises(DataError, match=r"there is no shard .*train-000099\.tar"):
        data.shards(out, train="train-{000098..000099}.tar".replace("98", "99"), **READING)
    for empty in ("{5..4}", "{0..999999999}", "{0..9999}{0..9999}"):
        with pytest.raises(DataError, match="names; from 1 to 100000 shards"):
            tar_files.expanded(f"train-{empty}.tar")


def test_labels_are_found_out_asked_for_or_left(tmp_path):
    write_tar(tmp_path / "train-0.tar", [("a.png", picture(0)), ("a.cls", b"3")])
    made = data.shards(tmp_path, **READING)
    assert (made.num_classes, made.labelled, made.val) == (4, True, None)
    write_tar(tmp_path / "val-0.tar", [("b.png", picture(0))])
    for labels in (None, True):
        with pytest.raises(DataError, match=r"val-0\.tar/b\.png has no class number"):
            data.shards(tmp_path, labels=labels, **READING)
    made = data.shards(tmp_path, labels=False, **READING)
    assert (made.num_classes, made.labelled, made.val) == (1, False, None)
    assert made.train.labels.tolist() == [0]


# --- URLs -------------------------------------------------------------------------------------


def test_a_url_is_copied_once_and_read_from_there(out, tmp_path):
    pytest.importorskip("webdataset")
    asked = []

    class Server(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args):
            super().__init__(*args, directory=out)

        def log_message(self, *args):
            asked.append(self.path)

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/train-{{000000..000001}}.tar"
    options = READING | {"train": url, "cache": tmp_path / "cache", "download": True}
    made = data.shards(tmp_path, **options)
    asked_once = len(asked)
    again = data.shards(tmp_path, **options)
    wrong = url.replace("train", "none")
    with pytest.raises(DataError, match=r"none-000000\.tar cannot be copied to .*cache"):
        data.shards(tmp_path, **options | {"train": wrong})
    server.shutdown()
    server.server_close()
    local = data.shards(out, train="train-{000000..000001}.tar", **READING)
    for files in (made.train, again.train):
        assert [files.content(i) for i in range(len(files))] == [
            local.train.content(i) for i in range(len(local.train))
        ]
    assert asked_once >= 2
    assert not [name for name in os.listdir(tmp_path / "cache") if name.startswith(".")]
    assert len(list((tmp_path / "cache").glob("*.tar"))) == 2


def test_a_url_without_the_package_or_a_cache_is_refused(tmp_path, monkeypatch):
    url = "https://example.org/train-0.tar"
    with pytest.raises(DataError, match=r"set dataset\.cache to a folder"):
        data.shards(tmp_path, train=url)
    with pytest.raises(DataError, match=r"has no copy in .* yet: set dataset\.download=true"):
        data.shards(tmp_path, train=url, cache=tmp_path)
    monkeypatch.setattr(remote.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DataError, match=r"needs the package webdataset.*pip install webdataset"):
        data.shards(tmp_path, train=url, cache=tmp_path, download=True)


@pytest.mark.parametrize(
    "url", ["pipe:true", "pipe:touch x", "s3://a/'; touch x; '.tar", "ais://a/$(touch x)"]
)
def test_no_command_is_run(tmp_path, url):
    with pytest.raises(DataError, match="dataset=shards does not open"):
        data.shards(tmp_path, train=url, cache=tmp_path / "cache", download=True)
    assert list(tmp_path.iterdir()) == []


# --- the command ------------------------------------------------------------------------------


def command(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["shards", *map(str, arguments)])
    entry.main()


def test_the_command_writes_what_it_says(tree, tmp_path, monkeypatch, capsys):
    command(monkeypatch, tree, tmp_path / "new")
    said = capsys.readouterr().out
    assert "train: 30 images in 1 shards\nval: 12 images in 1 shards\n" in said
    same(epoch_of(batches_of(tmp_path / "new")), epoch_of(loader(tree)))
    with pytest.raises(SystemExit):
        command(monkeypatch, tree, tmp_path / "new")
    assert re.match("error: .*new is not empty", capsys.readouterr().err)


def test_images_without_classes_and_with_dots_are_written_too(tmp_path, monkeypatch):
    root = tmp_path / "images"
    root.mkdir()
    for i, name in enumerate(("a.1.jpg", "a_1.jpg", "a_1.png", "b.jpg")):
        picture(i).save(root / name)
    command(monkeypatch, root, tmp_path / "new")
    made = data.shards(tmp_path / "new", **READING)
    assert not made.labelled
    same(epoch_of(batches_of(tmp_path / "new", batch_size=4)), epoch_of(loader(root, batch_size=4)))


def test_an_image_that_cannot_be_read_ends_the_command(tmp_path, monkeypatch, capsys):
    root = write_tree(tmp_path / "tree", train=2, val=1)
    (root / "train" / "cat" / "00.jpg").unlink()
    (root / "train" / "cat" / "00.jpg").symlink_to(tmp_path / "gone")
    with pytest.raises(SystemExit):
        command(monkeypatch, root, tmp_path / "new")
    assert "cat/00.jpg cannot be read" in capsys.readouterr().err
