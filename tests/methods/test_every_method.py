"""Every method trains as solo-learn's own class does, and filters have their place in it."""

import math
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import ROOT
from filelock import FileLock
from omegaconf import OmegaConf
from support import solo_learn_alone
from support.small_methods import batch, configure, loss_of, make
from torch.nn.functional import cosine_similarity, cross_entropy, normalize

from rdm_solo import methods
from rdm_solo.ground.errors import UserError
from rdm_solo.ground.lightning import pl
from rdm_solo.methods import optimizers, solo_learn
from rdm_solo.methods.descriptions import METHODS

HERE = [n for n, description in METHODS.items() if solo_learn.GENERATION in description.versions]
THEIRS = [name for name in HERE if name in solo_learn.TABLE]
LENGTH = {name: {"epochs": 2, "steps": 2} for name in METHODS}
# Whitening lets rounding grow: 1e-7 of its input is 2e-5 of the loss in the fourth step, measured.
LENGTH["wmse"] = {"epochs": 1, "steps": 2, "precision": "64-true"}
SIZES = {"proj_hidden_dim": 32, "proj_output_dim": 16, "pred_hidden_dim": 24, "queue_size": 48}
SIZES |= {"num_prototypes": 12, "whitening_size": 16}
OWN_SIZES = {
    "deepclusterv2": {"num_prototypes": [12, 12, 12]},
    "swav": {"queue_size": 32, "epoch_queue_starts": 1, "freeze_prototypes_epochs": 1},
    "wmse": {"proj_output_dim": 6, "whitening_eps": 0.1},
}
RATE = 0.02
# Values in solo-learn's files that differ: the paper has no queue, and nothing reads the others.
NOT_TAKEN_OVER = {
    "simsiam": {"temperature"},
    "swav": {"queue_size"},
    "ressl": {"base_tau_momentum", "final_tau_momentum", "momentum_classifier"},
}
OURS_ALONE = {"intl", "lejepa", "symsimsiam", "vanilla"}


def small(name: str):
    """Compose our config of a method in small sizes."""
    cfg = configure(
        f"method={name}",
        *("backbone.name=resnet18", "optimizer.name=sgd", f"optimizer.lr={RATE}"),
        *("scheduler.warmup_epochs=0", "batch_size=16"),
        *("optimizer.weight_decay=1e-4", "optimizer.exclude_bias_n_norm=false"),
        *(f"max_epochs={LENGTH[name]['epochs']}", f"optimizer.classifier_lr={RATE}"),
    )
    kwargs = cfg.method.kwargs
    sizes = {key: value for key, value in SIZES.items() if key in kwargs}
    cfg.method.kwargs = {**kwargs, **sizes, **OWN_SIZES.get(name, {})}
    return cfg


def by_solo_learns_names(cfg) -> dict:
    """Convert the config to what solo-learn's own classes take."""
    kwargs = OmegaConf.to_container(cfg.method.kwargs)
    epochs = LENGTH[cfg.method.name]["epochs"]
    crops = {"num_classes": 10, "num_large_crops": 2, "num_small_crops": 0}
    optimizer = {"batch_size": 16, "lr": RATE, "weight_decay": 1e-4, "classifier_lr": RATE}
    momentum = OmegaConf.to_container(cfg.method.get("momentum") or OmegaConf.create({}))
    if solo_learn.CURRENT:
        return {
            "method": cfg.method.name,
            "backbone": {"name": "resnet18", "kwargs": {}},
            "data": {"dataset": "cifar10", **crops},
            "max_epochs": epochs,
            "optimizer": {"name": "sgd", **optimizer, "kwargs": {"momentum": 0.9}},
            "scheduler": {"name": "none"},
            "momentum": momentum,
            "performance": {"disable_channel_last": True},
            "method_kwargs": kwargs,
        }
    arguments = {
        **{"encoder": "resnet18", "backbone_args": {"cifar": True, "zero_init_residual": False}},
        **{"max_epochs": epochs, "optimizer": "sgd", **optimizer, **crops, **kwargs},
        **{"lars": False, "exclude_bias_n_norm": False, "accumulate_grad_batches": 1},
        **{"extra_optimizer_args": {"momentum": 0.9}, "scheduler": "none", "min_lr": 0.0},
        **{"warmup_start_lr": 0.0, "warmup_epochs": 0},
    }
    if momentum:
        arguments |= {
            "base_tau_momentum": momentum["base_tau"],
            "final_tau_momentum": momentum["final_tau"],
            "momentum_classifier": False,
        }
    return arguments


@pytest.fixture(scope="session")
def alone(tmp_path_factory) -> dict[str, Any]:
    """Train solo-learn's own classes in one process without this package."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:  # the workers share one folder, and train once
        folder = folder.parent
    results = folder / "solo_learn_alone.pt"
    with FileLock(folder / "solo_learn_alone.lock"):
        if not results.exists():
            together = {name: by_solo_learns_names(small(name)) for name in THEIRS}
            settings = {"current": solo_learn.CURRENT, "length": LENGTH, "methods": together}
            torch.save(settings, folder / "solo_learn_settings.pt")
            files = [str(folder / "solo_learn_settings.pt"), str(results)]
            command = [sys.executable, solo_learn_alone.__file__, *files]
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
    return torch.load(results, weights_only=True)


@pytest.mark.process
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", THEIRS)
def test_it_trains_as_solo_learn_does_without_this_package(name, alone, monkeypatch):
    """Without a schedule, since All4One's transformer has a rate of its own."""
    monkeypatch.setattr(optimizers.WarmupCosine, "_rate", lambda schedule, base, step: base)
    torch.manual_seed(0)
    model = methods.build(small(name))
    losses, state = solo_learn_alone.trained(model, pl, **LENGTH[name])
    their_losses, their_state = alone[name]
    if name == "deepclusterv2":  # solo-learn's first epoch has no loss but the classifier's
        assert all(map(math.isnan, their_losses[:2]))
        assert all(map(math.isfinite, losses[:2]))
        losses, their_losses = losses[2:], their_losses[2:]
    assert losses == pytest.approx(their_losses, rel=1e-6)
    for key, value in their_state.items():
        our_key = re.sub(r"^(momentum_)?encoder\.", r"\1backbone.", key)
        torch.testing.assert_close(state[our_key], value, rtol=1e-5, atol=1e-6, msg=key)


def entropy_of(model, data) -> torch.Tensor:
    """Compute the online classifier's loss."""
    logits = [model.classifier(model.backbone(x)) for x in data[1]]
    return sum(cross_entropy(x, data[2]) for x in logits) / 2


QUEUED = [name for name in HERE if METHODS[name].neighbours and not METHODS[name].no_filter]


@pytest.mark.parametrize("name", QUEUED)
@pytest.mark.parametrize("chosen", ["online_log1p", "target_pow"])
def test_a_target_filter_transforms_what_the_queue_returned(name, chosen):
    """The queue keeps projections as they are, and the nearest are searched among those."""
    model, data = make(f"method={name}", f"filter={chosen}"), batch()
    queue, heads, keys = model.queue.clone(), [], []
    model.predictor.register_forward_hook(lambda module, args, p: heads.append(p))
    projector = getattr(model, "momentum_projector", model.projector)
    projector.register_forward_hook(lambda module, args, z: keys.append(normalize(z, dim=1)))
    loss = loss_of(model, data)

    targets = [model.target_head(queue[(z @ queue.T).argmax(1)]) for z in keys]
    pairs = list(zip(reversed(heads), targets))
    if name == "nnclr":
        logits = [normalize(t, dim=1) @ normalize(p, dim=1).T for p, t in pairs]
        expected = sum(cross_entropy(x / model.temperature, torch.arange(16)) for x in logits) / 2
    else:
        cosines = [cosine_similarity(p, t).mean() for p, t in pairs]
        expected = sum(2 - 2 * c for c in cosines) if name == "nnbyol" else -sum(cosines) / 2
    torch.testing.assert_close(loss, expected + entropy_of(model, data), rtol=1e-4, atol=1e-5)
    assert torch.equal(model.queue[:16], keys[0])
    assert torch.equal(model.queue[16:], queue[16:])


@pytest.mark.parametrize("chosen", ["learnable", "target_pow"])
@pytest.mark.skipif("mocov3" not in HERE, reason="MoCo v3 is in solo-learn's current main")
def test_mocov3_has_its_filter_behind_the_momentum_projector(chosen):
    model, data, q, k = make("method=mocov3", f"filter={chosen}"), batch(), [], []
    model.predictor.register_forward_hook(lambda module, args, p: q.append(normalize(p, dim=1)))
    model.target_head.register_forward_hook(lambda module, args, z: k.append(normalize(z, dim=1)))
    loss, temperature = loss_of(model, data), model.temperature
    logits = [a @ b.T / temperature for a, b in zip(q, reversed(k))]
    expected = sum(2 * temperature * cross_entropy(x, torch.arange(16)) for x in logits)
    torch.testing.assert_close(loss, expected + entropy_of(model, data), rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(solo_learn.CURRENT, reason="the current version has every method")
def test_an_absent_method_says_where_it_is():
    with pytest.raises(UserError, match="Its main branch has it"):
        methods.build(configure("method=mocov3"))


def test_every_method_of_solo_learn_with_two_branches_is_described():
    theirs = {n for n, kind in solo_learn.TABLE.items() if kind.__module__.startswith("solo.")}
    assert theirs - {"base", "linear", "mae"} == {*HERE} - OURS_ALONE


def test_defaults_are_those_of_solo_learns_own_files():
    """Sizes, momentum and optimiser of every method that has a file for CIFAR."""
    folder = Path(sys.modules["solo"].__path__[0]).parent / "scripts" / "pretrain" / "cifar"
    if not folder.is_dir():
        pytest.skip("solo-learn's release has no files of settings")
    for name in THEIRS:
        path = folder / f"{'barlow' if name == 'barlow_twins' else name}.yaml"
        theirs, ours = OmegaConf.load(path), OmegaConf.load(ROOT / f"conf/method/{name}.yaml")
        kwargs = ours.method.kwargs
        settings = theirs.method_kwargs.items()
        others = {key for key, value in settings if kwargs.get(key, "missing") != value}
        assert others == NOT_TAKEN_OVER.get(name, set()), name
        for key in ("lr", "classifier_lr", "weight_decay", "name") if "optimizer" in ours else ():
            assert ours.optimizer[key] == theirs.optimizer[key], (name, key)
        for key in ("base_tau", "final_tau") if METHODS[name].momentum else ():
            assert ours.method.momentum[key] == theirs.momentum[key], (name, key)
