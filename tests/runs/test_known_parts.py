"""What a folder's config may ask for: the package's own parts, and nothing else."""

from __future__ import annotations

import functools
import io
import tarfile
from pathlib import Path
from typing import Any

import pytest
from hydra.utils import get_method, instantiate
from omegaconf import DictConfig, OmegaConf
from PIL import Image
from support.small_runs import configure

from rdm_solo import data, loggers
from rdm_solo.cli import config_folder
from rdm_solo.loggers import RunInfo
from rdm_solo.runs import known_parts, saved_config
from rdm_solo.train import datamodule
from rdm_solo.train.trainer import make_callbacks

DATASETS = sorted(p.stem for p in (config_folder() / "dataset").glob("*.yaml"))
METHODS = sorted(p.stem for p in (config_folder() / "method").glob("*.yaml"))


composed = functools.cache(configure)


def folder_of(tmp_path: Path, *options: str, **changed: object) -> Path:
    cfg = composed(*options).copy()
    for key, value in changed.items():
        OmegaConf.update(cfg, key.replace("__", "."), value, merge=False, force_add=True)
    (tmp_path / ".hydra").mkdir()
    OmegaConf.save(cfg, tmp_path / ".hydra" / "config.yaml")
    return tmp_path


def build(folder: Path, *typed: str):
    """All parts of it, with what was typed in its place."""
    config = saved_config.with_references(folder)
    given = dict(option.split("=") for option in typed)
    for key, value in given.items():
        OmegaConf.update(config, key, value, force_add=True)
    return saved_config.to_build(config, folder, list(config), list(given), references=True)


@pytest.mark.parametrize(("dataset", "method"), list(zip(DATASETS, [*METHODS, "simsiam"])))
def test_all_that_this_package_ships_is_known(dataset, method, tmp_path):
    options = [f"dataset={dataset}", f"method={method}", "logger=[tensorboard,wandb]"]
    cfg: Any = OmegaConf.to_container(configure(*options))
    del cfg["launcher"]  # which is a sweep's
    for node in (cfg["dataset"], cfg["dataset"]["source"]):
        if "write_index" in node:
            node["write_index"] = False  # unless it is typed
    assert OmegaConf.to_container(build(folder_of(tmp_path, *options))) == cfg


def test_a_folder_may_ask_for_as_many_workers_as_a_command(tmp_path):
    dataset = {"dataset__workers": 256}
    assert build(folder_of(tmp_path, "dataset=folder", **dataset)).dataset.workers == 256
    assert data.Reading(image_size=32, workers=256).workers == 256
    with pytest.raises(ValueError, match=r"dataset\.workers must be .* from 0 to 256"):
        data.Reading(image_size=32, workers=257)


def test_the_list_is_that_of_the_functions():
    for names in known_parts.PARTS.values():
        assert all(map(get_method, names))


def test_arguments_of_the_trainer_that_only_say_how_to_train_are_taken(tmp_path):
    given = {"overfit_batches": 2, "inference_mode": False, "use_distributed_sampler": False}
    changed = {f"trainer__{name}": value for name, value in given.items()}
    assert given.items() <= build(folder_of(tmp_path, **changed)).trainer.items()


def make_all(cfg: DictConfig, folder: Path) -> None:
    datamodule.made(cfg)
    make_callbacks(cfg.callbacks, folder=folder, resume=None, cfg=cfg, title="", advise=None)
    loggers.open_all(cfg.logger, RunInfo(folder, "name", "group", {}, {}))


PLACES = ["dataset.source", "dataset.views", "dataset.views.pipelines.0"]
PLACES += ["callbacks.knn", "logger.wandb"]


@pytest.mark.parametrize("place", PLACES)
def test_a_number_that_a_part_does_not_take_is_refused_by_that_part(place, tmp_path):
    """Words are refused before; no other value is in a folder's config."""
    folder = folder_of(tmp_path, "logger=wandb", **{f"{place}.mine".replace(".", "__"): 5})
    cfg = build(folder)
    with pytest.raises(ValueError, match="argument 'mine'"):
        make_all(cfg, folder)
    assert [path.name for path in tmp_path.iterdir()] == [".hydra"]


PART = "which is not in this package and is not run"


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("dataset.source._target_", "sympy.sympify", PART),
        ("dataset.source._target_", "rdm_solo.data.folders.os.system", PART),
        ("dataset.source._target_", "rdm_solo.callbacks.Progress", PART),
        ("dataset.source._args_", ["1"], "an instruction for Hydra"),
        ("dataset.source._partial_", True, "an instruction for Hydra"),
        ("dataset.source.strings", "import os", "a word where"),
        ("dataset.views._target_", "torch.load", PART),
        ("dataset.views.pipelines", [{"_target_": "os.system"}], PART),
        ("dataset.image_size", 10**9, "whose views of a batch fill the memory"),
        ("dataset.root", "${oc.env:HOME}", "such as an environment variable"),
        ("dataset.root", "//server/share", "which leads to another machine"),
        ("callbacks.mine", {"_target_": "os.getcwd"}, PART),
        ("callbacks.diagnostics.folder", "/etc", "a word where"),
        (
            "dataset.source",
            {"_target_": "rdm_solo.data.synthetic", "num_classes": 10**9, "size": 64},
            "with so many pixels that they fill the memory",
        ),
        ("filter.function", "evilmod.f", PART),
        ("filter.function", "torch.load", PART),
        ("backbone.kwargs._target_", "os.system", "an instruction for Hydra"),
        ("backbone.kwargs.norm", {"_target_": "os.system"}, "an instruction for Hydra"),
        ("backbone.kwargs.checkpoint_path", "/etc/passwd", "which may fetch or read files"),
        ("backbone.kwargs.pretrained", True, "which may fetch or read files"),
        ("backbone.kwargs.pretrained_cfg", {"file": "x"}, "which may fetch or read files"),
        ("backbone.kwargs.pretrained_tag", "a", "which may fetch or read files"),
        ("backbone.kwargs.act", "os.system", "a word where"),
        ("backbone.kwargs.act", "/etc/passwd", "a word where"),
        ("optimizer.kwargs.hook", "os.system", "a word where"),
        ("method.kwargs.proj_output_dim", 10**12, "which is more than 1,048,576"),
        ("method.kwargs.sk_iters", 10**9, "which is more than 1,000"),
        ("trainer.plugins", ["x"], "an argument of Lightning's Trainer"),
        ("trainer.default_root_dir", "/etc", "an argument of Lightning's Trainer"),
        ("trainer.profiler", "simple", "an argument of Lightning's Trainer"),
        ("trainer.strategy", "deepspeed", "which is none of"),
        ("max_epochs", 10**30, "which is more than 1,000,000"),
        ("knn.k", 10**12, "which is more than"),
        ("optimizer.lr", float("inf"), "which is not a finite number"),
        ("seed", "a", "a word where"),
    ],
)
def test_anything_else_is_refused_by_file_name_and_value(name, value, said, tmp_path):
    folder = folder_of(tmp_path, **{name.replace(".", "__"): value})
    with pytest.raises(ValueError, match="is not taken from a folder") as refused:
        build(folder)
    assert said in str(refused.value)
    assert str(folder / ".hydra" / "config.yaml") in str(refused.value)
    assert name in str(refused.value)
    assert len(str(refused.value)) < 500


@pytest.mark.parametrize(
    ("group", "value"), [("trainer", "a"), ("trainer", 3), ("dataset", [1, [2, 3]]), ("knn", [])]
)
def test_a_value_where_a_group_belongs_is_an_error_that_typing_would_not_mend(
    group, value, tmp_path
):
    folder = folder_of(tmp_path, **{group: value})
    with pytest.raises(ValueError, match="where a group of options belongs") as refused:
        build(folder)
    assert str(refused.value).startswith(f"{folder / '.hydra' / 'config.yaml'} gives {group}=")
    assert "type" not in str(refused.value)


def test_a_name_that_is_typed_again_counts(tmp_path):
    folder = folder_of(tmp_path, filter__function="evilmod.f", dataset__source__mine="a word")
    typed = "filter.function=evilmod.f", "dataset.source._target_=own.data"
    built = build(folder, *typed)
    assert (built.filter.function, built.dataset.source.mine) == ("evilmod.f", "a word")
    with pytest.raises(ValueError, match="evilmod"):
        build(folder, typed[1])
    with pytest.raises(ValueError, match=r"dataset\.source\.mine"):
        build(folder, typed[0])


def test_nothing_is_downloaded_because_a_folder_says_so(tmp_path):
    folder = folder_of(tmp_path, "dataset=cifar10", "dataset.download=true")
    assert build(folder).dataset.source.download is False
    source = {"_target_": "rdm_solo.data.cifar10", "root": "data", "download": True}
    OmegaConf.save({"dataset": {"source": source}}, folder / ".hydra" / "config.yaml")
    assert build(folder).dataset.source.download is False


def test_ranges_of_shards_are_no_way_out_of_their_folder_and_urls_are_not_fetched(tmp_path):
    """`..` is refused in the name of a part, but for the one in a range."""
    shards = "train-{000000..000146}.tar"
    folder = folder_of(tmp_path, "dataset=shards", dataset__train=shards)
    assert build(folder).dataset.source.train == shards
    for name in ("../{0..1}.tar", "{0..1}/../x.tar", ".{0..1}./x.tar", "/{0..1}.tar"):
        config = {"dataset": {"train": name}}
        OmegaConf.save(config, folder / ".hydra" / "config.yaml")
        with pytest.raises(ValueError, match="which leads out of the data set's folder"):
            build(folder)
    source = {"_target_": "rdm_solo.data.shards", "root": ".", "train": "s3://a/b.tar"}
    source |= {"download": True, "cache": str(tmp_path / "cache")}
    OmegaConf.save({"dataset": {"source": source}}, folder / ".hydra" / "config.yaml")
    with pytest.raises(Exception, match=r"b\.tar has no copy in .*cache yet"):
        instantiate(build(folder).dataset.source)
    assert not (tmp_path / "cache").exists()


def test_no_index_is_written_beside_shards_that_a_folder_names(tmp_path):
    shards = tmp_path / "shards"
    shards.mkdir()
    with tarfile.open(shards / "train-0.tar", "w") as tar:
        content = io.BytesIO()
        Image.new("RGB", (40, 40)).save(content, "PNG")
        member = tarfile.TarInfo("a.png")
        member.size = len(content.getvalue())
        tar.addfile(member, io.BytesIO(content.getvalue()))
    folder = folder_of(tmp_path, "dataset=shards", f"dataset.root={shards}")
    source = {"_target_": "rdm_solo.data.shards", "root": str(shards)}
    for config in (None, {"dataset": {"source": source}}):
        if config:
            OmegaConf.save(config, folder / ".hydra" / "config.yaml")
        assert len(instantiate(build(folder).dataset.source).train) == 1
        assert [path.name for path in shards.iterdir()] == ["train-0.tar"]
    instantiate(build(folder, "dataset.write_index=true").dataset.source)
    assert len(list(shards.iterdir())) == 2


def test_a_root_of_the_folders_own_is_read_with_a_word(tmp_path, caplog):
    folder = folder_of(tmp_path, "dataset=folder", "dataset.root=/some/where")
    caplog.set_level("INFO")
    assert build(folder).dataset.source.root == "/some/where"
    assert f"data are read from /some/where, as {folder / '.hydra/config.yaml'} says" in caplog.text
    caplog.clear()
    build(folder, "dataset.root=/another")
    assert not caplog.text
