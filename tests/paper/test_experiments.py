"""Presets against the paper's appendix, which is written down here a second time.

Models are built on the meta device. No data set is read.
"""

import functools
import itertools
import re
from operator import attrgetter
from types import SimpleNamespace
from typing import Any

import hydra.utils
import pytest
import torch
from omegaconf import DictConfig
from torch import nn

from rdm_solo import methods, paper
from rdm_solo.cli.config_files import config_folder
from rdm_solo.data.sources import synthetic
from rdm_solo.filters import SpectralFilter
from rdm_solo.methods import optimizers
from rdm_solo.train import checks, compose, training_data

FOLDER = config_folder() / "experiment"
PRESETS = sorted(str(path.relative_to(FOLDER).with_suffix("")) for path in FOLDER.glob("*/*.yaml"))

# The appendix, "Datasets" and "Implementation Details".
SIDE = {"cifar10": 32, "cifar100": 32, "imagenet100": 224, "imagenet": 224}
BLUR = {32: 0.0, 224: 0.5}
BATCH = {"cifar10": 256, "cifar100": 256, "imagenet100": 128, "imagenet": 512}
# "RandomResizedCrop with scale in (0.2, 1.0), RandomHorizontalFlip with probability 0.5, ..."
AUGMENTATION = {
    "num_crops": 2,
    "crop_scale": (0.2, 1.0),
    "flip": 0.5,
    "jitter": 0.8,
    "brightness": 0.4,
    "contrast": 0.4,
    "saturation": 0.4,
    "hue": 0.1,
    "grey": 0.2,
    "solarize": 0.0,
    "rotate": 0.0,
}
# Widths of the linear layers: the paper's for SimSiam, solo-learn's for the others.
HEADS = {
    "simsiam": [2048, 2048, 2048],
    "symsimsiam": [2048, 2048, 2048],
    "vanilla": [2048, 2048, 2048],
    "byol": [4096, 256],
    "swav": [2048, 128],
    "dino": [2048, 2048, 256, 4096],  # the paper prints 4092
}
PREDICTORS = {"simsiam": [512, 2048], "byol": [4096, 256]}
# BN is on all three layers of the projector, and in the predictor's middle. "SimSiam with a
# learnable linear predictor could not work, so we delete the last BN in the projector."
NORMS = {"learnable": 4, "linear": 2}
# Attributes of the models that solo-learn sets.
DEFAULTS = {
    "byol": {"momentum_updater.base_tau": 0.99, "momentum_updater.final_tau": 1.0},
    "swav": {
        "prototypes.out_features": 3000,
        "queue_size": 0,  # "for the consistency of training loss"
        "temperature": 0.1,
        "sk_iters": 3,
        "sk_epsilon": 0.05,
    },
    "dino": {
        "momentum_updater.base_tau": 0.9995,
        "momentum_updater.final_tau": 1.0,
        "dino_loss_func.student_temp": 0.1,
        "dino_loss_func.center_momentum": 0.9,
    },
}
SGD = {
    "cifar10": (0.5, 1e-5),  # rate and weight decay
    "cifar100": (0.5, 1e-5),
    "imagenet100": (0.5, 1e-5),
    "imagenet": (0.05, 1e-4),
}
# "All default settings in solo-learn", scripts/pretrain/cifar.
LARS = {
    "byol": (1.0, 1e-5),
    "swav": (0.6, 1e-6),
    "dino": (0.3, 1e-6),
}


def layers(model: nn.Module, kind: type) -> list[Any]:
    return [module for module in model.modules() if isinstance(module, kind)]


def widths(head: nn.Module) -> list[int]:
    return [layer.out_features for layer in layers(head, nn.Linear)]


@functools.cache
def configure(*overrides: str) -> DictConfig:
    return compose(["trainer=cpu", *overrides])


def derive(config):
    """Scale the learning rates, which do not depend on the data set."""
    images = synthetic(num_train=200, num_val=1, size=1)
    views = hydra.utils.instantiate(config.dataset.views)
    return training_data.derive(config, images, views)


@pytest.fixture(scope="session", params=PRESETS)
def experiment(request) -> SimpleNamespace:
    """Return what a preset's name promises, and what its config makes."""
    dataset, name = request.param.split("/")
    method, _, kind = name.partition("_")
    preset = configure(f"experiment={request.param}")
    checks.check(preset)
    config, derived = derive(preset)
    with torch.device("meta"):
        model = methods.build(config)
    return SimpleNamespace(
        dataset=dataset,
        method=method,
        kind=kind,  # of predictor or filter; "" where the preset's name has none
        config=config,  # with scaled learning rates
        derived=derived,
        model=model,
    )


def assert_attributes(thing, expected: dict[str, Any]) -> None:
    actual = {name: attrgetter(name)(thing) for name in expected}
    assert actual == expected


def test_views_and_the_network_are_the_papers(experiment):
    method, kind, model = experiment.method, experiment.kind, experiment.model
    side = SIDE[experiment.dataset]
    (pipeline,) = hydra.utils.instantiate(experiment.config.dataset.views).pipelines
    assert_attributes(pipeline, AUGMENTATION | {"size": side, "blur": BLUR[side]})

    backbone = model.backbone
    is_cifar = side == 32
    assert (backbone.conv1.kernel_size == (3, 3)) is is_cifar
    assert isinstance(backbone.maxpool, nn.Identity) is is_cifar
    convolutions = {"imagenet": 53}.get(experiment.dataset, 20)  # with those of the shortcuts
    assert len(layers(backbone, nn.Conv2d)) == convolutions

    head = "head" if method == "dino" else "projector"
    assert widths(getattr(model, head)) == HEADS[method]
    if method in ("simsiam", "symsimsiam", "vanilla"):
        assert len(layers(model, nn.BatchNorm1d)) == NORMS.get(kind, 3)
    if kind == "learnable":
        assert widths(model.predictor) == PREDICTORS[method]
    elif kind == "linear":
        assert model.predictor.weight.shape == (HEADS[method][-1],) * 2
        assert model.predictor.bias is None
    filters = {f"{f.branch}_{f.function}" for f in layers(model, SpectralFilter)}
    assert filters == {kind} - {"", "learnable", "linear"}
    assert_attributes(model, DEFAULTS.get(method, {}))
    if method == "dino":
        assert set(model.dino_loss_func.teacher_temp_schedule) == {0.07}  # no warm-up


def test_the_optimiser_is_the_papers(experiment):
    method, model = experiment.method, experiment.model
    batch = BATCH[experiment.dataset]
    lr, decay = LARS.get(method, SGD[experiment.dataset])
    peak = lr * batch / 256
    assert experiment.derived.global_batch == batch
    steps = 3 * experiment.config.max_epochs
    configured = optimizers.configure(model.learnable_params, experiment.config, steps)
    optimizer = configured["optimizer"]
    assert ("Lars" in repr(optimizer)) is (method in LARS)
    static = set()
    classifier = set(model.classifier.parameters())
    for group in optimizer.param_groups:
        if group["params"][0] in classifier:
            continue
        assert group["initial_lr"] == pytest.approx(peak)
        assert group["momentum"] == 0.9
        if method in LARS and group["params"][0].ndim == 1:  # biases and norms
            assert group["weight_decay"] == 0.0
        else:
            assert group["weight_decay"] == decay
        if group["static_lr"]:
            static.update(group["params"])
    # "The learning rate of SimSiam's predictor" is not decayed.
    expected = set()
    if method == "simsiam" and experiment.kind in ("learnable", "linear"):
        expected = set(model.predictor.parameters())
    assert static == expected

    # Ten epochs of warm-up, and a cosine to zero.
    schedule = configured["lr_scheduler"]["scheduler"]
    third = 30 + (steps - 30) / 3  # where the cosine of pi / 3 is a half
    rates = []
    for step in (0, 15, 29, 30, third, steps):
        schedule.load_state_dict({"last_epoch": step})
        rates.append(schedule.get_last_lr()[0])
    assert rates == pytest.approx([0, peak * 15 / 29, peak, peak, peak * 3 / 4, 0], abs=1e-12)


def test_residual_blocks_start_at_zero():
    config, _ = derive(configure("experiment=cifar10/simsiam_learnable"))
    backbone = methods.build(config).backbone
    last = [block.bn2.weight for block in backbone.modules() if hasattr(block, "bn2")]
    assert len(last) == 8
    assert not torch.cat(last).any()


def test_the_rate_follows_the_batch_of_all_processes_and_steps():
    config = configure(
        "experiment=imagenet/simsiam_learnable",
        "trainer.devices=2",
        "trainer.num_nodes=4",
        "trainer.accumulate_grad_batches=3",
    )
    _, derived = derive(config)
    assert (derived.filter_batch, derived.global_batch) == (8 * 512, 24 * 512)
    assert derived.lr == pytest.approx(0.05 * 24 * 512 / 256)


def test_rows_are_configured_as_they_say():
    names = {"": "learnable", "nonlinear": "learnable", "linear": "linear"}
    # SimSiam's official code has 100; the paper follows it there without printing a number.
    epochs = {"imagenet": 100, "alignment_cz_cplus": 400}
    for row in paper.rows():
        preset, *options = paper.preset(row)
        cfg = configure(preset)  # of all rows with this preset
        assert cfg.dataset.name == row.dataset
        assert cfg.method.name == row.framework
        name = names.get(row.predictor, f"{row.location}_{row.predictor}")
        if row.framework in ("swav", "dino"):
            name = "none"
        assert cfg.filter.name == name, row
        if row.predictor == "pow":
            assert f"p={row.p:g}" in options, row
        else:
            assert cfg.p is None, row
        number = row.epochs or epochs[row.table]
        assert f"max_epochs={number}" in options or cfg.max_epochs == number, row


def each_run(options: str) -> list[tuple[str, ...]]:
    """Return the options of each run of a sweep."""
    choices = []
    for option in options.split():
        name, values = option.split("=")
        choices.append([f"{name}={value}" for value in values.split(",")])
    return list(itertools.product(*choices))


def test_the_printed_commands_are_those_of_every_row_and_figure():
    expected = [tuple(paper.preset(row)) for row in paper.rows()]
    for line in paper.figures():
        expected += each_run(line["options"])
    printed = []
    for command in re.findall(r"`rdm-solo train (?:-m )?(.*?)`", paper.markdown()):
        printed += each_run(command)
    assert set(printed) == set(expected)
    used = {run[0].removeprefix("experiment=") for run in printed}
    assert used == set(PRESETS)
