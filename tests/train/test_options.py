"""Invalid options are refused in one line before anything is written."""

import re
import sys

import pytest
import torch
from omegaconf import OmegaConf
from support.small_runs import SMALL, WITHOUT_PREDICTOR, run

from rdm_solo.ground.errors import UserError
from rdm_solo.train import compose, sweep

FUNCTION = ["filter=online_log1p"]
ACCUMULATE = "trainer.accumulate_grad_batches=2"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["optimizer=adam"], "did you mean optimizer.name=adam"),
        (["knn=10"], "knn=10 would replace all options of knn"),
        (["p=-0.5"], "p=-0.5 would be ignored: filter=learnable"),
        (["filter.momentum=0.5"], "filter.momentum would be ignored: filter=learnable"),
        (["filter=target_pow", "filter.solver=svd"], "filter.solver must be"),
        (["filter=target_pow", "p={schedule: steps, 1: 0, 3: 1}"], "p's step in epoch 3 would"),
        (["share_epochs=true", "checkpoint.best=true"], "share_epochs=true cannot be combined"),
        (["backbone.compile=reduce-overhead", ACCUMULATE], "use max-autotune-no-cudagraphs"),
        (["scheduler.warmup_epochs=5"], "scheduler.warmup_epochs=5 is longer than"),
        (["++trainer.limit_train_batch=1"], "did you mean 'limit_train_batches'"),
        (["+trainer.max_epochs=3"], "multiple values for keyword argument 'max_epochs'"),
        (["++backbone.kwargs.depth=3"], "unexpected keyword argument 'depth'"),
        (["backbone.name=resnet19"], "did you mean 'resnet18'"),
        (["filter=online_truncate", "filter.keep=16"], "filter.keep must be an integer from 1"),
        ([*FUNCTION, "filter.function=os.system"], "'os.system' fails for a tensor"),
        ([*FUNCTION, "filter.function=os.path"], "'os.path' is no function"),
        ([*FUNCTION, "filter.function=nonsense"], "the filter function must be one of"),
        (["checkpoint.best=true", "knn.every_n_epochs=0"], "checkpoint.best=true would be ignored"),
        (["knn.k=65"], "knn.k=65 neighbours are more than the 64 training images"),
        (["+callbacks.mine=3"], "Cannot instantiate"),
        (["+callbacks.knn.every=3"], "callbacks.knn cannot be built"),
        (["optimizer.name=lars", "optimizer.fused=true"], "lars has no fused version"),
        (["method=swav", "filter=online_log"], "method=swav takes no filter, since its"),
        (["method=simsiam", "filter=none"], "method=simsiam needs a filter"),
        (["method=dino", "method.kwargs.clip_grad=1", ACCUMULATE], "clip_grad=1 cannot be"),
        (["method=nnsiam", "method.kwargs.queue_size=500"], "must be a multiple of the 16 rows"),
        (["method=swav", "method.kwargs.queue_size=7"], "must be at least the 16 rows"),
        (["dataset.views=null"], "dataset.views must be rdm_solo.data.Views"),
        (["dataset.num_train=1"], "limited by the number of training images"),
    ],
)
def test_an_invalid_option_is_refused(overrides, message, tmp_path):
    with pytest.raises(UserError, match=re.escape(message)) as refused:
        run(tmp_path / "run", *WITHOUT_PREDICTOR, *overrides)
    assert len(str(refused.value).splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_the_runs_of_a_sweep_are_checked_before_the_first_starts():
    with pytest.raises(UserError, match="p must be a number"):
        sweep.check_all(["-m", "filter=target_pow", "p=-0.5,soft"])
    # A preset's values are Hydra's ``hydra.sweeper.params``; an option replaces them.
    preset = ["-m", "+study=rate", "method.stop_gradient=none"]
    with pytest.raises(UserError, match=r"method\.loss=iso needs"):
        sweep.check_all(preset)
    sweep.check_all([*preset, "method.loss=mse"])


def test_a_sweep_with_another_sweeper_is_not_checked_in_advance(tmp_path):
    (tmp_path / "study").mkdir()
    preset = tmp_path / "study" / "search.yaml"
    preset.write_text(
        "# @package _global_\n"
        "hydra:\n"
        "  sweeper:\n"
        "    _target_: another.Sweeper\n"
        "    params: {p: 'interval(-1, 0)'}\n"
    )
    searched = f"hydra.searchpath=[file://{tmp_path}]"
    sweep.check_all(["-m", searched, "+study=search", "filter=target_pow"])


@pytest.mark.parametrize(
    ("method", "dataset", "backbone", "batch", "epochs"),
    [
        ("vanilla", "textures", "small_resnet", 64, 24),
        ("vanilla", "cifar100", "resnet18", 256, 100),
        ("wmse", "imagenet100", "resnet18", 128, 400),
        ("simsiam", "imagenet", "resnet50", 512, 100),
    ],
)
def test_a_data_set_chooses_the_sizes_of_every_method(method, dataset, backbone, batch, epochs):
    cfg = compose([f"dataset={dataset}", f"method={method}"])
    assert cfg.backbone.name == backbone
    assert cfg.batch_size == batch
    assert cfg.max_epochs == epochs
    chosen = compose([f"dataset={dataset}", "sizes=small"])
    assert chosen.backbone.name == "small_resnet"
    assert chosen.backbone.kwargs.in_channels == chosen.dataset.channels


@pytest.mark.parametrize(("size", "stem"), [(64, "small"), (65, "imagenet")])
def test_the_stem_follows_the_views(size, stem):
    cfg = compose(["dataset=folder", f"dataset.image_size={size}"])
    assert cfg.backbone.stem == stem
    assert compose([f"dataset.image_size={size}", "backbone.stem=small"]).backbone.stem == "small"


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("hydra.run.dir=blocked/run", "is not writable"),
        ("hydra.run.dir=", "hydra.run.dir is empty"),
        ("resume=nowhere", "resume=nowhere: there is no such folder"),
        ("knn.k=9999", "knn.k=9999 neighbours are more"),  # known once the data are read
    ],
)
def test_a_wrong_folder_is_refused_in_one_line(argument, message, tmp_path, train):
    (tmp_path / "blocked").write_text("a file where a folder should be")
    out = train(*SMALL, argument)
    assert out.returncode == 2
    assert out.stderr.startswith("error: ")
    assert len(out.stderr.splitlines()) == 1
    assert message in out.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["blocked"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_missing_gpu_is_reported_before_slow_imports(tmp_path, train, monkeypatch):
    monkeypatch.setitem(sys.modules, "rdm_solo.train.run", None)  # importing it would fail
    out = train(*SMALL, "trainer=gpu", "trainer.accelerator=gpu")
    assert out.returncode == 2
    assert "no GPU found: use trainer=cpu or trainer=auto" in out.stderr
    assert not list(tmp_path.iterdir())


def test_a_config_is_printed_without_a_run(train, tmp_path):
    out = train("--cfg", "job", "filter=online_pow")
    cfg = OmegaConf.create(out.stdout)
    assert cfg.p == 1
    assert cfg.filter.branch == "online"
    assert cfg.max_epochs == 24
    assert not list(tmp_path.iterdir())
