"""Presets against the paper's appendix, written down here a second time; models as they are built.

Models stand on the meta device, where building one costs nothing; what needs values is built for
each pair of data set and method once. Nothing is read from a data set.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
from types import SimpleNamespace

import hydra.utils
import pytest
import torch
from conftest import ROOT, oracle
from hydra import compose, initialize_config_dir
from torch import nn

from rdm_solo import methods, paper
from rdm_solo.cli import config_folder
from rdm_solo.data import Dataset, Images
from rdm_solo.methods import optimizers
from rdm_solo.train import checks, derived_values

# The appendix, "Datasets" and "Implementation Details".
PAPER = {
    "cifar10": {"classes": 10, "images": 50_000, "side": 32, "batch": 256, "blur": 0.0},
    "cifar100": {"classes": 100, "images": 50_000, "side": 32, "batch": 256, "blur": 0.0},
    "imagenet100": {"classes": 100, "images": 126_689, "side": 224, "batch": 128, "blur": 0.5},
    "imagenet": {"classes": 1000, "images": 1_281_167, "side": 224, "batch": 512, "blur": 0.5},
}
FEATURES = {"cifar10": 512, "cifar100": 512, "imagenet100": 512, "imagenet": 2048}  # ResNet-18, -50
SGD = {"cifar10": (0.5, 1e-5), "cifar100": (0.5, 1e-5), "imagenet100": (0.5, 1e-5)}
SGD["imagenet"] = (0.05, 1e-4)
# "All default settings in solo-learn", scripts/pretrain/cifar: LARS's rate and weight decay.
LARS = {"byol": (1.0, 1e-5), "swav": (0.6, 1e-6), "dino": (0.3, 1e-6)}
OUTPUTS = {"simsiam": 2048, "symsimsiam": 2048, "vanilla": 2048, "byol": 256, "swav": 3000}
OUTPUTS["dino"] = 4096  # where the paper prints 4092
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
HEADS |= {"byol": [4096, 256], "swav": [2048, 128], "dino": [2048, 2048, 256, 4096]}
PREDICTORS = {"simsiam": [512, 2048], "byol": [4096, 256]}


def widths(head: nn.Module) -> list[int]:
    return [layer.out_features for layer in head.modules() if isinstance(layer, nn.Linear)]


def experiments() -> list[str]:
    folder = config_folder() / "experiment"
    return sorted(
        str(path.relative_to(folder).with_suffix("").as_posix()) for path in folder.rglob("*.yaml")
    )


def each_run(options: str) -> list[tuple[str, ...]]:
    """The runs of a sweep, by their options."""
    pairs = (option.split("=") for option in options.split())
    choices = [[f"{name}={value}" for value in values.split(",")] for name, values in pairs]
    return list(itertools.product(*choices))


def runs() -> dict[tuple[str, ...], None]:
    """Every run of a table or a figure, once."""
    tables = [tuple(paper.preset(row)) for row in paper.rows()]
    figures = [run for line in paper.figures() for run in each_run(line["options"])]
    return dict.fromkeys([*tables, *figures])


@functools.cache
def configure(*overrides: str):
    with initialize_config_dir(str(config_folder()), version_base="1.3"):
        return compose("config", overrides=["trainer=cpu", *overrides])


@functools.cache
def images(dataset: str) -> Dataset:
    """A data set of the right size that takes no memory."""
    n = PAPER[dataset]["images"]
    part = Images(
        torch.zeros(1, 1, 1, 1, dtype=torch.uint8).expand(n, 3, 1, 1),
        torch.zeros(1, dtype=torch.int64).expand(n),
    )
    classes = PAPER[dataset]["classes"]
    return Dataset(dataset, part, part, classes, (0.5,) * 3, (0.25,) * 3)


@functools.cache
def prepared(*overrides: str, device: str = "meta") -> SimpleNamespace:
    cfg = configure(*overrides)
    checks.check(cfg)
    views = hydra.utils.instantiate(cfg.dataset.views)
    crops = (views.num_large_crops, views.num_small_crops)
    full, derived = derived_values.derive(cfg, images(cfg.dataset.name), *crops)
    with torch.device(device):
        model = methods.build(full)
    return SimpleNamespace(cfg=cfg, full=full, derived=derived, views=views, model=model)


def named(overrides: tuple[str, ...]) -> tuple[str, str, str | None]:
    """Data set, method and filter that an experiment's name promises."""
    dataset, _, rest = overrides[0].removeprefix("experiment=").partition("/")
    method, _, kind = rest.partition("_")
    return dataset, method, kind or None


# One for each pair of data set and method; CIFAR-100 has CIFAR-10's recipes.
ONE_EACH = [
    "cifar10/byol_learnable",
    "cifar10/dino",
    "cifar10/simsiam_learnable",
    "cifar10/swav",
    "cifar10/symsimsiam",
    "cifar10/vanilla",
    "imagenet100/simsiam_linear",
    "imagenet/simsiam_target_pow",
]


# The first run of every preset.
FIRST = list({run[0]: run for run in reversed(list(runs()))}.values())


@pytest.fixture(params=FIRST, ids=lambda run: run[0].removeprefix("experiment="))
def experiment(request):
    return request.param


class TestPreset:
    def test_it_is_what_its_name_says(self, experiment):
        cfg, (dataset, method, kind) = configure(*experiment), named(experiment)
        assert (cfg.dataset.name, cfg.method.name) == (dataset, method)
        assert cfg.filter.name == (kind or "none")

    def test_views_are_the_papers(self, experiment):
        dataset = named(experiment)[0]
        (pipeline,) = prepared(*experiment).views.pipelines
        wanted = AUGMENTATION | {"size": PAPER[dataset]["side"], "blur": PAPER[dataset]["blur"]}
        assert {name: getattr(pipeline, name) for name in wanted} == wanted

    def test_the_backbone_is_the_papers(self, experiment):
        dataset = named(experiment)[0]
        made = prepared(*experiment)
        backbone, side = made.model.backbone, PAPER[dataset]["side"]
        small = side == 32
        assert backbone.conv1.kernel_size == ((3, 3) if small else (7, 7))
        assert isinstance(backbone.maxpool, nn.Identity) is small
        depth = sum(isinstance(m, nn.Conv2d) for m in backbone.modules())
        assert depth == (53 if dataset == "imagenet" else 20)  # with those of the shortcuts
        features = backbone(torch.empty(2, 3, side, side, device="meta"))
        assert features.shape == (2, FEATURES[dataset])

    def test_the_outputs_have_the_papers_dimension(self, experiment):
        _, method, _ = named(experiment)
        model = prepared(*experiment).model
        last = {"swav": "prototypes", "dino": "head"}.get(method, "projector")
        *_, outputs = widths(getattr(model, last))
        assert outputs == OUTPUTS[method]

    def test_heads_are_the_papers(self, experiment):
        _, method, kind = named(experiment)
        model = prepared(*experiment).model
        assert widths(model.head if method == "dino" else model.projector) == HEADS[method]
        norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm1d)]
        if method in ("simsiam", "symsimsiam", "vanilla"):
            # BN on all three layers, and in the predictor's middle. "SimSiam with a learnable
            # linear predictor could not work, so we delete the last BN in the projector."
            assert len(norms) == 3 + (kind == "learnable") - (kind == "linear")
        if kind == "learnable":
            assert widths(model.predictor) == PREDICTORS[method]
        elif kind == "linear":
            assert model.predictor.weight.shape == (OUTPUTS[method],) * 2
            assert model.predictor.bias is None

    def test_momentum_encoders_and_transforms_are_solo_learns(self, experiment):
        method, cfg = named(experiment)[1], configure(*experiment)
        model = prepared(*experiment).model
        tau = {"byol": 0.99, "dino": 0.9995}
        assert hasattr(model, "momentum_updater") is (method in tau)
        if method in tau:
            updater = model.momentum_updater
            assert (updater.base_tau, updater.final_tau) == (tau[method], 1.0)
        if method == "swav":
            assert model.queue_size == 0  # "for the consistency of training loss"
            assert (model.temperature, model.sk_iters, model.sk_epsilon) == (0.1, 3, 0.05)
        if method == "dino":
            loss = model.dino_loss_func
            assert (loss.student_temp, loss.center_momentum) == (0.1, 0.9)
            assert set(loss.teacher_temp_schedule) == {0.07}  # no warm-up of the temperature
            assert len(loss.teacher_temp_schedule) == cfg.max_epochs

    def test_the_filter_is_the_papers(self, experiment):
        _, _, kind = named(experiment)
        filters = getattr(prepared(*experiment).model, "filters", [])
        if kind not in GAINS:
            assert filters == []
            return
        (spectral,) = filters
        assert spectral.branch == kind.split("_")[0]
        x = torch.randn(32, 8, generator=torch.Generator().manual_seed(0))
        wanted, _ = oracle(x, lambda s: GAINS[kind](s, spectral.p), cut=0)
        # Measured: at most 5.3e-8 of the largest entry.
        atol = 5e-7 * float(wanted.abs().max())
        torch.testing.assert_close(spectral(x).double(), wanted, rtol=0, atol=atol)

    def test_the_optimiser_is_the_papers(self, experiment):
        dataset, method, kind = named(experiment)
        made = prepared(*experiment)
        lars = method in LARS
        lr, decay = LARS[method] if lars else SGD[dataset]
        scaled = lr * PAPER[dataset]["batch"] / 256
        assert made.cfg.batch_size == made.derived.global_batch == PAPER[dataset]["batch"]
        chosen = optimizers.configure(made.model.learnable_params, made.full, steps=1000)
        optimizer = chosen["optimizer"]
        assert type(optimizer).__name__ == ("Lars" if lars else "SGD")
        classifier = {id(p) for p in made.model.classifier.parameters()}
        groups = [g for g in optimizer.param_groups if id(g["params"][0]) not in classifier]
        assert all(g["initial_lr"] == pytest.approx(scaled) for g in groups)
        assert {g["momentum"] for g in groups} == {0.9}
        # LARS leaves biases and norms out of the weight decay.
        vectors = [g["weight_decay"] for g in groups if lars and g["params"][0].ndim == 1]
        assert {g["weight_decay"] for g in groups if not (lars and g["params"][0].ndim == 1)} == {
            decay
        }
        assert set(vectors) == ({0.0} if lars else set())
        # "The learning rate of SimSiam's predictor" is not decayed.
        static = {id(p) for g in groups if g["static_lr"] for p in g["params"]}
        learns = method == "simsiam" and kind in ("learnable", "linear")
        assert static == ({id(p) for p in made.model.predictor.parameters()} if learns else set())

    def test_ten_epochs_of_warm_up_and_a_cosine_to_zero(self, experiment):
        made = prepared(*experiment)
        steps = 3 * made.cfg.max_epochs
        chosen = optimizers.configure(made.model.learnable_params, made.full, steps=steps)
        schedule = chosen["lr_scheduler"]["scheduler"]

        def rate(step: int) -> float:
            schedule.load_state_dict({"last_epoch": step})
            return schedule.get_last_lr()[0]

        peak = made.derived.lr
        assert rate(0) == 0
        assert rate(15) == pytest.approx(peak * 15 / 29)
        assert rate(29) == rate(30) == pytest.approx(peak)
        third = 30 + (steps - 30) // 3
        share = (third - 30) / (steps - 30)
        assert rate(third) == pytest.approx(peak * (1 + math.cos(math.pi * share)) / 2)
        assert rate(steps) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("name", ONE_EACH)
def test_the_command_line_wins(name):
    given = ["max_epochs=77", "batch_size=64", "optimizer.lr=0.125", "backbone.stem=imagenet"]
    cfg = configure(f"experiment={name}", *given, "scheduler.warmup_epochs=3", "method=byol")
    assert (cfg.max_epochs, cfg.batch_size, cfg.optimizer.lr) == (77, 64, 0.125)
    assert (cfg.backbone.stem, cfg.scheduler.warmup_epochs) == ("imagenet", 3)
    assert (cfg.method.name, cfg.method.kwargs.pred_hidden_dim) == ("byol", 4096)


@pytest.mark.parametrize("name", ONE_EACH)
def test_residual_blocks_start_at_zero(name):
    model = prepared(f"experiment={name}", device="cpu").model
    deep = named((name,))[0] == "imagenet"
    last = [
        getattr(m, "bn3" if deep else "bn2") for m in model.backbone.modules() if hasattr(m, "bn2")
    ]
    assert len(last) == (16 if deep else 8)
    assert all((norm.weight == 0).all() for norm in last)
    prepared.cache_clear()  # a real ResNet-50 is larger than all the others together


@pytest.mark.parametrize("dataset", PAPER)
def test_the_rate_follows_the_batch_of_all_processes_and_steps(dataset):
    name = f"experiment={dataset}/simsiam_learnable"
    several = ["trainer.devices=2", "trainer.num_nodes=4", "trainer.accumulate_grad_batches=3"]
    cfg = configure(name, *several)
    _, derived = derived_values.derive(cfg, images(dataset), 2, 0)
    batch, (lr, _) = PAPER[dataset]["batch"], SGD[dataset]
    assert derived.processes == 8
    assert derived.filter_batch == 8 * batch
    assert derived.global_batch == 24 * batch
    assert derived.lr == pytest.approx(lr * 24 * batch / 256)
    # The paper's batch on eight devices, as the presets' comments have it.
    cfg = configure(name, "trainer.devices=8", f"batch_size={batch // 8}")
    _, derived = derived_values.derive(cfg, images(dataset), 2, 0)
    assert derived.lr == pytest.approx(lr * batch / 256)


ROWS: dict[str, list[paper.Row]] = {}
for _row in paper.rows():
    _head = [o for o in paper.preset(_row) if not o.startswith("max_epochs=")]
    ROWS.setdefault(" ".join([_row.table, *_head]), []).append(_row)
# Figures' runs that no row has.
_OF_ROWS = {tuple(paper.preset(row)) for row in paper.rows()}
OTHERS = [run for run in runs() if run not in _OF_ROWS]


class TestRows:
    def test_every_number_of_the_tables_is_there(self):
        rows = paper.rows()
        count = {
            table: sum(row.table == table for row in rows) for table in {r.table for r in rows}
        }
        assert count == {
            "online_predictors": 6 * 8,
            "target_predictors": 4 * 8,
            "byol": 6 * 6,
            "imagenet": 6,
            "cost": 6,
            "alignment_cz_cplus": 8,
        }

    @pytest.mark.parametrize("same", ROWS.values(), ids=ROWS)
    def test_a_row_is_configured_as_it_says(self, same):
        cfg = configure(*paper.preset(same[0]))  # the others differ in epochs and metric alone
        row, own = same[0], {"nonlinear": "learnable", "linear": "linear"}
        assert (cfg.dataset.name, cfg.method.name) == (row.dataset, row.framework)
        assert cfg.p == (row.p if row.predictor == "pow" else None)
        if row.table == "alignment_cz_cplus":
            assert cfg.filter.name in ("learnable", "none")
        else:
            assert cfg.filter.name == own.get(row.predictor, f"{row.location}_{row.predictor}")
            assert cfg.filter.get("branch", "online") == row.location
        # SimSiam's official code has 100; the paper follows it there without printing a number.
        default = {"imagenet": 100, "alignment_cz_cplus": 400}.get(row.table)
        assert cfg.max_epochs == (row.epochs or default)
        for row in same:
            epochs = [o for o in paper.preset(row) if o.startswith("max_epochs=")]
            if row.table != "imagenet":
                assert epochs == [f"max_epochs={row.epochs or default}"]

    @pytest.mark.parametrize("run", OTHERS, ids=" ".join)
    def test_a_figures_own_runs_compose_and_pass_the_checks(self, run):
        checks.check(configure(*run))

    def test_every_preset_belongs_to_a_row_or_a_figure(self):
        assert {run[0].removeprefix("experiment=") for run in runs()} == set(experiments()) - {
            "debug"
        }

    def test_figures_are_the_papers(self):
        shown: dict[int, set[str]] = {}
        for line in paper.figures():
            found = {named(run)[1] for run in each_run(line["options"])}
            shown.setdefault(int(line["figure"]), set()).update(found)
        assert list(shown) == list(range(1, 10))
        for figure in (1, 3, 4, 5, 7, 8):
            assert shown[figure] == {"byol", "simsiam", "swav", "dino"}
        assert shown[2] == {"simsiam", "symsimsiam", "vanilla"}


class TestPage:
    PAGE = (ROOT / "docs" / "experiments.md").read_text(encoding="utf-8")

    def test_it_has_the_commands_of_today(self):
        assert self.PAGE.endswith(paper.markdown()), "write it anew: python -m rdm_solo.paper"

    def test_it_has_every_run(self):
        lines = re.findall(r"`python -m rdm_solo.train (?:-m )?(.*?)`", self.PAGE)
        found = {frozenset(run) for line in lines for run in each_run(line)}
        assert {frozenset(run) for run in runs()} == found

    def test_the_first_command_is_taken(self):
        (line,) = re.findall(r"^    python -m rdm_solo.train (.*)$", self.PAGE, re.MULTILINE)
        cfg = configure(*line.split())
        assert (cfg.filter.name, cfg.p, cfg.max_epochs) == ("target_pow", -0.5, 100)
