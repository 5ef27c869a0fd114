"""Every method trains as solo-learn's own class does, and filters have their place in it."""

import functools
import json
import math
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
import torchvision
from conftest import ROOT
from omegaconf import OmegaConf
from support import solo_learn_alone
from support.small_methods import batch, classifier_loss, configure, loss_of, make
from torch.nn.functional import cosine_similarity, cross_entropy, normalize
from torch.testing import assert_close

from rdm_solo import methods
from rdm_solo.ground.errors import UserError
from rdm_solo.ground.lightning import pl
from rdm_solo.methods import optimizers, solo_learn
from rdm_solo.methods.descriptions import METHODS

INSTALLED = [name for name, m in METHODS.items() if solo_learn.GENERATION in m.versions]
OURS = {"intl", "lejepa", "symsimsiam", "vanilla"}
FROM_SOLO_LEARN = [name for name in INSTALLED if name not in OURS]
FILTERED = [name for name in INSTALLED if not METHODS[name].no_filter]
QUEUED = [name for name in FILTERED if METHODS[name].neighbours]
LENGTH = {name: {"epochs": 2, "steps": 2} for name in METHODS}
# Whitening lets rounding grow: 1e-7 of its input is 2e-5 of the loss in the fourth step, measured.
LENGTH["wmse"] = {"epochs": 1, "steps": 2, "precision": "64-true"}
SIZES = {
    "proj_hidden_dim": 32,
    "proj_output_dim": 16,
    "pred_hidden_dim": 24,
    "queue_size": 48,
    "num_prototypes": 12,
    "whitening_size": 16,
}
OWN_SIZES = {
    "deepclusterv2": {"num_prototypes": [12, 12, 12]},
    "swav": {"queue_size": 32, "epoch_queue_starts": 1, "freeze_prototypes_epochs": 1},
    "wmse": {"proj_output_dim": 6, "whitening_eps": 0.1},
}
RATE = 0.02
# Values in solo-learn's files that differ: the paper has no queue, and nothing reads the others.
DIFFERENT_DEFAULTS = {
    "simsiam": {"temperature"},
    "swav": {"queue_size"},
    "ressl": {"base_tau_momentum", "final_tau_momentum", "momentum_classifier"},
}


@functools.cache
def small(name):
    """Compose our config of a method in small sizes."""
    cfg = configure(
        f"method={name}",
        "backbone.name=resnet18",
        "optimizer.name=sgd",
        f"optimizer.lr={RATE}",
        f"optimizer.classifier_lr={RATE}",
        "optimizer.weight_decay=1e-4",
        "optimizer.exclude_bias_n_norm=false",
        "scheduler.warmup_epochs=0",
        "batch_size=16",
        f"max_epochs={LENGTH[name]['epochs']}",
    )
    for option, size in {**SIZES, **OWN_SIZES.get(name, {})}.items():
        if option in cfg.method.kwargs:
            cfg.method.kwargs[option] = size
    return cfg


def by_solo_learns_names(cfg):
    """Convert the config to what solo-learn's own classes take."""
    kwargs = OmegaConf.to_container(cfg.method.kwargs)
    momentum = dict(cfg.method.get("momentum") or {})
    data = {"num_classes": 10, "num_large_crops": 2, "num_small_crops": 0}
    optimizer = {"batch_size": 16, "lr": RATE, "weight_decay": 1e-4, "classifier_lr": RATE}
    if solo_learn.CURRENT:
        return {
            "method": cfg.method.name,
            "backbone": {"name": "resnet18", "kwargs": {}},
            "data": {"dataset": "cifar10", **data},
            "max_epochs": cfg.max_epochs,
            "optimizer": {"name": "sgd", **optimizer, "kwargs": {"momentum": 0.9}},
            "scheduler": {"name": "none"},
            "momentum": momentum,
            "performance": {"disable_channel_last": True},
            "method_kwargs": kwargs,
        }
    return {
        **data,
        **optimizer,
        **kwargs,
        "encoder": "resnet18",
        "backbone_args": {"cifar": True, "zero_init_residual": False},
        "max_epochs": cfg.max_epochs,
        "optimizer": "sgd",
        "lars": False,
        "exclude_bias_n_norm": False,
        "accumulate_grad_batches": 1,
        "extra_optimizer_args": {"momentum": 0.9},
        "scheduler": "none",
        "min_lr": 0.0,
        "warmup_start_lr": 0.0,
        "warmup_epochs": 0,
        "base_tau_momentum": momentum.get("base_tau"),
        "final_tau_momentum": momentum.get("final_tau"),
        "momentum_classifier": False,
    }


def use_tiny_networks(patch):
    patch.setattr(torchvision.models, "resnet18", solo_learn_alone.TinyResNet)
    if solo_learn.CURRENT:
        resnets = sys.modules["solo.backbones.resnet"]
        patch.setattr(resnets, "default_resnet18", solo_learn_alone.TinyResNet)
    else:
        patch.setattr(torch, "cholesky", torch.linalg.cholesky)  # its name today


IN_A_PROCESS = pytest.param("in a process", marks=[pytest.mark.process, pytest.mark.long])


@pytest.fixture(scope="session", params=["here", IN_A_PROCESS])
def alone(request, tmp_path_factory):
    """Train solo-learn's own classes, here or in a process without this package."""
    configs = {name: by_solo_learns_names(small(name)) for name in FROM_SOLO_LEARN}
    settings = {"current": solo_learn.CURRENT, "length": LENGTH, "methods": configs}
    if request.param == "here":
        with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            use_tiny_networks(patch)
            return solo_learn_alone.train(settings, pl)
    results = tmp_path_factory.mktemp("alone") / "results.pt"
    command = [sys.executable, solo_learn_alone.__file__, json.dumps(settings), results]
    process = subprocess.run(command, cwd=results.parent, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    return torch.load(results, weights_only=True)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", FROM_SOLO_LEARN)
def test_it_trains_as_solo_learns_own_class_does(name, alone, monkeypatch):
    """Train without a schedule, since All4One's transformer has a rate of its own."""
    monkeypatch.setattr(optimizers.WarmupCosine, "get_lr", lambda schedule: schedule.base_lrs)
    use_tiny_networks(monkeypatch)
    torch.manual_seed(0)
    model = methods.build(small(name))
    losses, state = solo_learn_alone.trained(model, pl, **LENGTH[name])
    expected_losses, expected_state = alone[name]
    if name == "deepclusterv2":  # solo-learn's first epoch has no loss but the classifier's
        assert all(map(math.isnan, expected_losses[:2]))
        assert all(map(math.isfinite, losses[:2]))
        losses, expected_losses = losses[2:], expected_losses[2:]
    # Measured: 2e-16 and 2e-15, by wmse in float64; the others have the same bits.
    assert losses == pytest.approx(expected_losses, rel=1e-6)
    for key, value in expected_state.items():
        our_key = re.sub(r"^(momentum_)?encoder\.", r"\1backbone.", key)
        assert_close(state[our_key], value, rtol=1e-5, atol=1e-6, msg=key)


def recorded(module):
    """Return a list to which the module's outputs are added as unit rows."""
    outputs = []

    def record(module, inputs, output):
        outputs.append(normalize(output, dim=1))

    module.register_forward_hook(record)
    return outputs


def contrast(a, b, temperature):
    """Return the loss of telling each row's partner from the others."""
    return cross_entropy(a @ b.T / temperature, torch.arange(len(a)))


@pytest.mark.parametrize("name", QUEUED)
@pytest.mark.parametrize("chosen", ["online_log1p", "target_pow"])
def test_a_target_filter_transforms_what_the_queue_returned(name, chosen):
    """The queue keeps projections as they are, and the nearest are searched among those."""
    model = make(f"method={name}", f"filter={chosen}")
    data = batch()
    queue = model.queue.clone()
    outputs = recorded(model.predictor)
    projections = recorded(getattr(model, "momentum_projector", model.projector))
    loss = loss_of(model, data)

    expected = classifier_loss(model, data)
    for z, p in zip(list(projections), reversed(outputs)):
        nearest = queue[(z @ queue.T).argmax(1)]
        target = normalize(model.target_head(nearest), dim=1)
        cosine = cosine_similarity(p, target).mean()
        if METHODS[name].loss_minimum == -1:
            expected = expected - cosine / 2
        elif METHODS[name].loss_minimum == 0:
            expected = expected + 2 - 2 * cosine
        else:
            expected = expected + contrast(target, p, model.temperature) / 2
    assert_close(loss, expected, rtol=1e-4, atol=1e-5)
    assert torch.equal(model.queue[:16], projections[0])
    assert torch.equal(model.queue[16:], queue[16:])


@pytest.mark.parametrize("name", FILTERED)
def test_both_views_pass_through_both_filters(name):
    model = make(f"method={name}", "filter=both_pow")
    outputs = recorded(model.predictor)
    targets = recorded(model.target_head)
    loss_of(model, batch())
    for calls in (outputs, targets):
        views = [view for call in calls for view in call.reshape(-1, *call.shape[-2:])]
        assert len(views) == 2


@pytest.mark.skipif(solo_learn.CURRENT, reason="the current version has every method")
def test_an_absent_method_says_where_it_is():
    with pytest.raises(UserError, match="PYTHONPATH"):
        methods.build(configure("method=mocov3"))


def test_every_method_of_solo_learn_with_two_branches_is_described():
    assert {*solo_learn.TABLE} - {"base", "linear", "mae"} == {*FROM_SOLO_LEARN}


def test_defaults_are_those_of_solo_learns_own_files():
    """Compare sizes, momentum and optimiser of every method that has a file for CIFAR."""
    package = Path(sys.modules["solo"].__path__[0])
    folder = package.parent / "scripts/pretrain/cifar"
    if not folder.is_dir():
        pytest.skip("solo-learn's release has no files of settings")
    for name in FROM_SOLO_LEARN:
        theirs = OmegaConf.load(folder / f"{name.replace('barlow_twins', 'barlow')}.yaml")
        ours = OmegaConf.load(ROOT / f"conf/method/{name}.yaml")
        differences = set()
        for option, value in theirs.method_kwargs.items():
            if ours.method.kwargs.get(option, "missing") != value:
                differences.add(option)
        assert differences == DIFFERENT_DEFAULTS.get(name, set()), name
        if "optimizer" in ours:
            for option in ("lr", "classifier_lr", "weight_decay", "name"):
                assert ours.optimizer[option] == theirs.optimizer[option], name
        if METHODS[name].momentum:
            for option in ("base_tau", "final_tau"):
                assert ours.method.momentum[option] == theirs.momentum[option], name
