"""Every method of solo-learn's is solo-learn's own, but for what a filter replaces."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf
from support import solo_learn_alone
from support.small_methods import configure

from rdm_solo import methods
from rdm_solo.lightning import pl
from rdm_solo.methods import solo_learn
from rdm_solo.methods.descriptions import METHODS

HERE = [name for name, known in METHODS.items() if solo_learn.GENERATION in known.versions]
THEIRS = [name for name in HERE if name in solo_learn.TABLE]
LENGTH = {"epochs": 2, "batch": 16, "steps": 3}
SIZES = {"proj_hidden_dim": 32, "proj_output_dim": 16, "pred_hidden_dim": 24, "queue_size": 48}
SIZES |= {"num_prototypes": 12, "whitening_size": 16}
OWN_SIZES = {
    "deepclusterv2": {"num_prototypes": [12, 12, 12]},
    "swav": {"queue_size": 32, "epoch_queue_starts": 1, "freeze_prototypes_epochs": 1},
    # Without epsilon, small eigenvalues let float32's rounding grow a thousandfold in six steps.
    "wmse": {"proj_output_dim": 6, "whitening_eps": 0.1},
}
RATE = 0.02


def small(name: str, *options: str):
    """Our config of that method, in small sizes and with a constant rate."""
    cfg = configure(
        f"method={name}",
        *("backbone.name=resnet18", "optimizer.name=sgd", f"optimizer.lr={RATE}"),
        *("scheduler.warmup_epochs=0", f"scheduler.min_lr={RATE}", "batch_size=16"),
        *("optimizer.weight_decay=1e-4", "optimizer.exclude_bias_n_norm=false"),
        *(f"max_epochs={LENGTH['epochs']}", f"optimizer.classifier_lr={RATE}"),
        *options,
    )
    kwargs = cfg.method.kwargs
    sizes = {key: value for key, value in SIZES.items() if key in kwargs}
    cfg.method.kwargs = {**kwargs, **sizes, **OWN_SIZES.get(name, {})}
    return cfg


def by_solo_learns_names(cfg) -> dict:
    """The same values as solo-learn itself is given them."""
    kwargs = OmegaConf.to_container(cfg.method.kwargs)
    crops = {"num_classes": 10, "num_large_crops": 2, "num_small_crops": 0}
    optimizer = {"batch_size": 16, "lr": RATE, "weight_decay": 1e-4, "classifier_lr": RATE}
    momentum = OmegaConf.to_container(cfg.method.get("momentum") or OmegaConf.create({}))
    if solo_learn.CURRENT:
        return {
            "method": cfg.method.name,
            "backbone": {"name": "resnet18", "kwargs": {}},
            "data": {"dataset": "cifar10", **crops},
            "max_epochs": LENGTH["epochs"],
            "optimizer": {"name": "sgd", **optimizer, "kwargs": {"momentum": 0.9}},
            "scheduler": {"name": "none"},
            "momentum": momentum,
            "performance": {"disable_channel_last": True},
            "method_kwargs": kwargs,
        }
    arguments = {
        **{"encoder": "resnet18", "backbone_args": {"cifar": True, "zero_init_residual": False}},
        **{"max_epochs": LENGTH["epochs"], "optimizer": "sgd", **optimizer, **crops, **kwargs},
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


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> dict:
    """What solo-learn's own classes did in a process of their own."""
    folder = tmp_path_factory.mktemp("alone")
    given = {name: by_solo_learns_names(small(name)) for name in THEIRS}
    settings = {"current": solo_learn.CURRENT, "length": LENGTH, "methods": given}
    torch.save(settings, folder / "in.pt")
    script = Path(solo_learn_alone.__file__)
    command = [sys.executable, str(script), str(folder / "in.pt"), str(folder / "out.pt")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return torch.load(folder / "out.pt", weights_only=True)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", THEIRS)
def test_it_trains_as_solo_learn_does_without_this_package(name, alone):
    """Losses, weights, queues, prototypes and momentum networks of six steps."""
    cfg = small(name)
    torch.manual_seed(0)
    model = methods.build(cfg)
    ours = solo_learn_alone.trained(model, pl, **LENGTH)
    theirs = alone[name]
    want, state = theirs["losses"], theirs["state"]
    if name == "deepclusterv2":  # solo-learn's first epoch has no loss but the classifier's
        assert all(map(torch.isnan, torch.tensor(want[:3])))
        assert torch.tensor(ours["losses"][:3]).isfinite().all()
        want, ours["losses"] = want[3:], ours["losses"][3:]
    assert ours["losses"] == pytest.approx(want, rel=1e-6)
    renamed = {_current_name(key): value for key, value in state.items()}
    left_out = renamed.keys() - ours["state"].keys()
    assert not left_out
    for key, value in renamed.items():
        torch.testing.assert_close(ours["state"][key], value, rtol=1e-5, atol=1e-6, msg=key)


def _current_name(key: str) -> str:
    for old, new in (("momentum_encoder.", "momentum_backbone."), ("encoder.", "backbone.")):
        if key.startswith(old):
            return new + key.removeprefix(old)
    return key
