"""Presets against the paper's appendix, which is written down here a second time.

Models are built on the meta device. No data set is read.
"""

import functools
import itertools
import re
from typing import Any, NamedTuple

import hydra.utils
import pytest
import torch
from conftest import oracle
from omegaconf import DictConfig
from torch import nn

from rdm_solo import methods, paper
from rdm_solo.cli.config_files import config_folder
from rdm_solo.data import Dataset, Images, Views
from rdm_solo.methods import optimizers
from rdm_solo.train import checks, compose, training_data

# The appendix, "Datasets" and "Implementation Details".
CIFAR = {"classes": 10, "images": 50_000, "side": 32, "batch": 256, "blur": 0.0}
IMAGENET = {"classes": 1000, "images": 1_281_167, "side": 224, "batch": 512, "blur": 0.5}
PAPER = {
    "cifar10": CIFAR,
    "cifar100": CIFAR | {"classes": 100},
    "imagenet100": IMAGENET | {"classes": 100, "images": 126_689, "batch": 128},
    "imagenet": IMAGENET,
}
SGD = {name: (0.05, 1e-4) if name == "imagenet" else (0.5, 1e-5) for name in PAPER}
# "All default settings in solo-learn", scripts/pretrain/cifar: LARS's rate and weight decay.
LARS = {"byol": (1.0, 1e-5), "swav": (0.6, 1e-6), "dino": (0.3, 1e-6)}
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
# What a filter does to a singular value.
GAINS = {
    "online_pow": lambda s, p: s,
    "online_log": lambda s, p: s.log(),
    "online_log1p": lambda s, p: (1 + s).log(),
    "online_log1p_sq": lambda s, p: (1 + s * s).log(),
    "target_pow": lambda s, p: s**p,
}


# Widths of the linear layers: the paper's for SimSiam, solo-learn's for the others.
HEADS = {name: [2048, 2048, 2048] for name in ("simsiam", "symsimsiam", "vanilla")}
# DINO's last one is 4096, where the paper prints 4092.
HEADS |= {"byol": [4096, 256], "swav": [2048, 128], "dino": [2048, 2048, 256, 4096]}
PREDICTORS = {"simsiam": [512, 2048], "byol": [4096, 256]}


def widths(head: nn.Module) -> list[int]:
    return [layer.out_features for layer in head.modules() if isinstance(layer, nn.Linear)]


def each_run(options: str) -> list[tuple[str, ...]]:
    """Return the options of each run of a sweep."""
    pairs = (option.split("=") for option in options.split())
    choices = [[f"{name}={value}" for value in values.split(",")] for name, values in pairs]
    return list(itertools.product(*choices))


def runs() -> dict[tuple[str, ...], None]:
    """Return every run of a table or a figure once."""
    tables = [tuple(paper.preset(row)) for row in paper.rows()]
    figures = [run for line in paper.figures() for run in each_run(line["options"])]
    return dict.fromkeys([*tables, *figures])


@functools.cache
def configure(*overrides: str):
    return compose(["trainer=cpu", *overrides])


@functools.cache
def images(dataset: str) -> Dataset:
    """Return a data set of the right size that takes no memory."""
    n = PAPER[dataset]["images"]
    part = Images(
        torch.zeros(1, 1, 1, 1, dtype=torch.uint8).expand(n, 3, 1, 1),
        torch.zeros(1, dtype=torch.int64).expand(n),
    )
    classes = PAPER[dataset]["classes"]
    return Dataset(dataset, part, part, classes, (0.5,) * 3, (0.25,) * 3)


def make_views(config: DictConfig) -> Views:
    return hydra.utils.instantiate(config.dataset.views)


# The first run of every preset.
FIRST = list({run[0]: run for run in reversed(list(runs()))}.values())


class Experiment(NamedTuple):
    dataset: str
    method: str
    filter: str  # "" where the preset's name has none
    config: DictConfig  # with scaled learning rates
    derived: training_data.Derived
    views: Views
    model: Any


@pytest.fixture(scope="session", params=FIRST, ids=lambda run: run[0].removeprefix("experiment="))
def experiment(request) -> Experiment:
    """Return what a preset's name promises, and what its config makes."""
    name = request.param[0].removeprefix("experiment=")
    dataset, method, kind = re.fullmatch(r"(\w+)/([a-z]+)_?(.*)", name).groups()
    config = configure(*request.param)
    checks.check(config)
    views = make_views(config)
    config, derived = training_data.derive(config, images(dataset), views)
    with torch.device("meta"):
        model = methods.build(config)
    return Experiment(dataset, method, kind, config, derived, views, model)


def test_views_are_the_papers(experiment):
    appendix = PAPER[experiment.dataset]
    (pipeline,) = experiment.views.pipelines
    expected = AUGMENTATION | {"size": appendix["side"], "blur": appendix["blur"]}
    assert {name: getattr(pipeline, name) for name in expected} == expected


def test_the_backbone_is_the_papers(experiment):
    side, backbone = PAPER[experiment.dataset]["side"], experiment.model.backbone
    assert backbone.conv1.kernel_size == ((3, 3) if side == 32 else (7, 7))
    assert isinstance(backbone.maxpool, nn.Identity) is (side == 32)
    convolutions = sum(isinstance(m, nn.Conv2d) for m in backbone.modules())
    is_resnet50 = experiment.dataset == "imagenet"
    assert convolutions == (53 if is_resnet50 else 20)  # with those of the shortcuts
    features = backbone(torch.empty(2, 3, side, side, device="meta"))
    assert features.shape == (2, 2048 if is_resnet50 else 512)


def test_heads_are_the_papers(experiment):
    method, model = experiment.method, experiment.model
    assert widths(model.head if method == "dino" else model.projector) == HEADS[method]
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm1d)]
    learnable, linear = (experiment.filter == name for name in ("learnable", "linear"))
    if method in ("simsiam", "symsimsiam", "vanilla"):
        # BN on all three layers, and in the predictor's middle. "SimSiam with a learnable
        # linear predictor could not work, so we delete the last BN in the projector."
        assert len(norms) == 3 + learnable - linear
    if learnable:
        assert widths(model.predictor) == PREDICTORS[method]
    elif linear:
        assert model.predictor.weight.shape == (HEADS[method][-1],) * 2
        assert model.predictor.bias is None
        assert method != "simsiam" or model.projector[-1].bias.requires_grad


def test_momentum_and_transforms_are_solo_learns(experiment):
    method, model = experiment.method, experiment.model
    tau = {"byol": 0.99, "dino": 0.9995}
    assert hasattr(model, "momentum_updater") is (method in tau)
    if method in tau:
        updater = model.momentum_updater
        assert (updater.base_tau, updater.final_tau) == (tau[method], 1.0)
    if method == "swav":
        assert model.prototypes.out_features == 3000
        assert model.queue_size == 0  # "for the consistency of training loss"
        assert (model.temperature, model.sk_iters, model.sk_epsilon) == (0.1, 3, 0.05)
    if method == "dino":
        loss = model.dino_loss_func
        assert (loss.student_temp, loss.center_momentum) == (0.1, 0.9)
        assert set(loss.teacher_temp_schedule) == {0.07}  # no warm-up


def test_the_filter_is_the_papers(experiment):
    kind, filters = experiment.filter, getattr(experiment.model, "filters", [])
    assert [f.branch for f in filters] == ([kind.split("_")[0]] if kind in GAINS else [])
    for spectral in filters:
        x = torch.randn(32, 8, generator=torch.Generator().manual_seed(0))
        expected, _ = oracle(x, lambda s, spectral=spectral: GAINS[kind](s, spectral.p), cut=0)
        # Measured: at most 5.3e-8 of the largest entry.
        atol = 5e-7 * float(expected.abs().max())
        torch.testing.assert_close(spectral(x).double(), expected, rtol=0, atol=atol)


def test_the_optimiser_is_the_papers(experiment):
    method, model, lars = experiment.method, experiment.model, experiment.method in LARS
    batch = PAPER[experiment.dataset]["batch"]
    lr, decay = LARS[method] if lars else SGD[experiment.dataset]
    assert experiment.config.batch_size == experiment.derived.global_batch == batch
    configured = optimizers.configure(model.learnable_params, experiment.config, 1000)
    assert type(configured["optimizer"]).__name__ == ("Lars" if lars else "SGD")
    classifier = {id(p) for p in model.classifier.parameters()}
    static = set()
    for group in configured["optimizer"].param_groups:
        if id(group["params"][0]) not in classifier:
            assert group["initial_lr"] == pytest.approx(lr * batch / 256)
            assert group["momentum"] == 0.9
            vectors = lars and group["params"][0].ndim == 1  # LARS leaves out biases and norms
            assert group["weight_decay"] == (0.0 if vectors else decay)
            static |= {id(p) for p in group["params"]} if group["static_lr"] else set()
    # "The learning rate of SimSiam's predictor" is not decayed.
    learns = method == "simsiam" and experiment.filter in ("learnable", "linear")
    assert static == ({id(p) for p in model.predictor.parameters()} if learns else set())


def test_ten_epochs_of_warm_up_and_a_cosine_to_zero(experiment):
    steps, peak = 3 * experiment.config.max_epochs, experiment.derived.lr
    configured = optimizers.configure(experiment.model.learnable_params, experiment.config, steps)
    schedule = configured["lr_scheduler"]["scheduler"]

    def rate(step: float) -> float:
        schedule.load_state_dict({"last_epoch": step})
        return schedule.get_last_lr()[0]

    third = 30 + (steps - 30) / 3  # where the cosine of pi / 3 is a half
    rates = [rate(step) for step in (0, 15, 29, 30, third, steps)]
    expected = [0, peak * 15 / 29, peak, peak, peak * 3 / 4, 0]
    assert rates == pytest.approx(expected, abs=1e-12)


def test_residual_blocks_start_at_zero():
    config = configure("experiment=cifar10/simsiam_learnable")
    full, _ = training_data.derive(config, images("cifar10"), make_views(config))
    backbone = methods.build(full).backbone
    last = [block.bn2 for block in backbone.modules() if hasattr(block, "bn2")]
    assert len(last) == 8
    assert all((norm.weight == 0).all() for norm in last)


def test_the_rate_follows_the_batch_of_all_processes_and_steps():
    several = ["trainer.devices=2", "trainer.num_nodes=4", "trainer.accumulate_grad_batches=3"]
    config = configure("experiment=imagenet/simsiam_learnable", *several)
    _, derived = training_data.derive(config, images("imagenet"), make_views(config))
    batch, lr = IMAGENET["batch"], SGD["imagenet"][0]
    assert derived.processes == 8
    assert (derived.filter_batch, derived.global_batch) == (8 * batch, 24 * batch)
    assert derived.lr == pytest.approx(lr * 24 * batch / 256)


# Rows by their options without max_epochs, of which only one is composed.
SAME: dict[tuple[str, ...], list[paper.Row]] = {}
for _row in paper.rows():
    _options = (o for o in paper.preset(_row) if not o.startswith("max_epochs="))
    SAME.setdefault((_row.table, *_options), []).append(_row)


@pytest.mark.parametrize("rows", SAME.values(), ids=map(" ".join, SAME))
def test_rows_are_configured_as_they_say(rows):
    row, names = rows[0], {"nonlinear": "learnable", "linear": "linear"}
    cfg = configure(*paper.preset(row))  # the others differ in epochs and metric
    assert (cfg.dataset.name, cfg.method.name) == (row.dataset, row.framework)
    assert cfg.p == (row.p if row.predictor == "pow" else None)
    if row.table == "alignment_cz_cplus":
        assert cfg.filter.name in ("learnable", "none")
    else:
        assert cfg.filter.name == names.get(row.predictor, f"{row.location}_{row.predictor}")
        assert cfg.filter.get("branch", "online") == row.location
    # SimSiam's official code has 100; the paper follows it there without printing a number.
    default = {"imagenet": 100, "alignment_cz_cplus": 400}.get(row.table)
    assert cfg.max_epochs == (row.epochs or default)
    for other in rows:
        epochs = [o for o in paper.preset(other) if o.startswith("max_epochs=")]
        assert epochs in ([], [f"max_epochs={other.epochs or default}"])


def test_every_preset_belongs_to_a_row_or_a_figure():
    folder = config_folder() / "experiment"
    presets = {path.relative_to(folder).as_posix() for path in folder.rglob("*.yaml")}
    used = {f"{run[0].removeprefix('experiment=')}.yaml" for run in runs()}
    assert used == presets - {"debug.yaml"}


def test_the_printed_tables_have_the_commands_of_every_run():
    lines = re.findall(r"`rdm-solo train (?:-m )?(.*?)`", paper.markdown())
    assert {frozenset(run) for line in lines for run in each_run(line)} == {*map(frozenset, runs())}
