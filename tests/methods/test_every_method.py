"""Every method of solo-learn's is solo-learn's own, but for what a filter replaces."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from conftest import ROOT
from omegaconf import OmegaConf
from support import solo_learn_alone
from support.small_methods import batch, configure, loss_of
from support.small_runs import run
from torch.nn.functional import cosine_similarity, normalize

from rdm_solo import methods
from rdm_solo.lightning import pl
from rdm_solo.methods import optimizers, solo_learn
from rdm_solo.methods.descriptions import METHODS, NOT_HERE, method

HERE = [name for name, known in METHODS.items() if solo_learn.GENERATION in known.versions]
THEIRS = [name for name in HERE if name in solo_learn.TABLE]
LENGTH = {name: {"epochs": 2, "steps": 3} for name in METHODS}
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
# Parts of ours that others lack: a filter's place behind a queue and momentum, clusters, whitening.
FIRST = ("nnbyol", "deepclusterv2", "wmse")
OTHERS = [name for name in THEIRS if name not in FIRST]
# What our files do not take over of solo-learn's, and why.
NOT_TAKEN_OVER = {
    "simsiam": {"temperature": "nobody reads it"},
    "swav": {"queue_size": "the paper has no queue"},
    "ressl": {
        "base_tau_momentum": "nobody reads it: momentum.* counts",
        "final_tau_momentum": "nobody reads it: momentum.* counts",
        "momentum_classifier": "nobody reads it: momentum.* counts",
    },
}
OURS_ALONE = {"symsimsiam", "vanilla"}
NO_METHODS = {"base", "linear"}  # what solo-learn's table has beside its methods


def small(name: str, *options: str):
    """Our config of that method, in small sizes."""
    cfg = configure(
        f"method={name}",
        *("backbone.name=resnet18", "optimizer.name=sgd", f"optimizer.lr={RATE}"),
        *("scheduler.warmup_epochs=0", "batch_size=16"),
        *("optimizer.weight_decay=1e-4", "optimizer.exclude_bias_n_norm=false"),
        *(f"max_epochs={LENGTH[name]['epochs']}", f"optimizer.classifier_lr={RATE}"),
        *options,
    )
    kwargs = cfg.method.kwargs
    sizes = {key: value for key, value in SIZES.items() if key in kwargs}
    cfg.method.kwargs = {**kwargs, **sizes, **OWN_SIZES.get(name, {})}
    return cfg


def by_solo_learns_names(cfg) -> dict:
    """The same values as solo-learn itself is given them."""
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


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> Callable[[str], dict]:
    """What solo-learn's own classes did in a process of their own, which trains several."""
    done: dict[str, dict] = {}

    def of(name: str) -> dict:
        if name not in done:
            together = FIRST if name in FIRST else OTHERS
            done.update(_trained_alone(together, tmp_path_factory.mktemp("alone")))
        return done[name]

    return of


def _trained_alone(names: Sequence[str], folder: Path) -> dict:
    given = {name: by_solo_learns_names(small(name)) for name in names}
    settings = {"current": solo_learn.CURRENT, "length": LENGTH, "methods": given}
    torch.save(settings, folder / "in.pt")
    script = Path(solo_learn_alone.__file__)
    command = [sys.executable, str(script), str(folder / "in.pt"), str(folder / "out.pt")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return torch.load(folder / "out.pt", weights_only=True)


@pytest.mark.process
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name", [*FIRST, *(pytest.param(name, marks=pytest.mark.long) for name in OTHERS)]
)
def test_it_trains_as_solo_learn_does_without_this_package(name, alone, monkeypatch):
    """Losses, weights, queues, prototypes and momentum networks of some steps, without a schedule:
    All4One's transformer has a rate of its own."""
    monkeypatch.setattr(optimizers.WarmupCosine, "_rate", lambda schedule, base, step: base)
    cfg = small(name)
    torch.manual_seed(0)
    model = methods.build(cfg)
    ours = solo_learn_alone.trained(model, pl, **LENGTH[name])
    theirs = alone(name)
    want, state = theirs["losses"], theirs["state"]
    if name == "deepclusterv2":  # solo-learn's first epoch has no loss but the classifier's
        assert all(map(torch.isnan, torch.tensor(want[:3])))
        assert torch.tensor(ours["losses"][:3]).isfinite().all()
        want, ours["losses"] = want[3:], ours["losses"][3:]
    assert ours["losses"] == pytest.approx(want, rel=1e-6)
    renamed = {_current_name(key): value for key, value in state.items()}
    assert not renamed.keys() - ours["state"].keys()
    for key, value in renamed.items():
        torch.testing.assert_close(ours["state"][key], value, rtol=1e-5, atol=1e-6, msg=key)


def _current_name(key: str) -> str:
    for old, new in (("momentum_encoder.", "momentum_backbone."), ("encoder.", "backbone.")):
        if key.startswith(old):
            return new + key.removeprefix(old)
    return key


NEIGHBOURS = [name for name in HERE if METHODS[name].neighbours and not METHODS[name].no_filter]


@pytest.mark.parametrize("name", NEIGHBOURS)
@pytest.mark.parametrize("chosen", ["learnable", "identity", "online_log1p", "target_pow"])
def test_a_target_filter_works_on_what_was_found_in_the_queue(name, chosen):
    """The queue keeps projections as they are, and the nearest are searched among those."""
    torch.manual_seed(0)
    model = methods.build(configure(f"method={name}", f"filter={chosen}"))
    model.train()
    data, queue = batch(), model.queue.clone()
    found = []
    model.predictor.register_forward_hook(lambda module, args, p: found.append((args[0], p)))
    keys = []
    projector = getattr(model, "momentum_projector", model.projector)
    projector.register_forward_hook(lambda module, args, z: keys.append(normalize(z, dim=1)))
    loss = loss_of(model, data)

    nearest = [queue[(z @ queue.T).argmax(1)] for z in keys]
    target = [model.target_head(rows) for rows in nearest]
    (_, p1), (_, p2) = found
    if name == "nnclr":
        labels = torch.arange(16)
        want = sum(
            torch.nn.functional.cross_entropy(
                normalize(t, dim=1) @ normalize(p, dim=1).T / model.temperature, labels
            )
            for t, p in zip(target, (p2, p1))
        )
        want = want / 2
    else:
        each = [cosine_similarity(p, t).mean() for p, t in zip((p2, p1), target)]
        want = sum(2 - 2 * c for c in each) if name == "nnbyol" else -sum(each) / 2
    classifier = sum(
        torch.nn.functional.cross_entropy(model.classifier(model.backbone(x)), data[2])
        for x in data[1]
    )
    torch.testing.assert_close(loss, want + classifier / 2, rtol=1e-4, atol=1e-5)
    assert torch.equal(model.queue[:16], keys[0])
    assert torch.equal(model.queue[16:], queue[16:])


@pytest.mark.parametrize("chosen", ["learnable", "identity", "online_pow", "target_pow"])
@pytest.mark.skipif("mocov3" not in HERE, reason="MoCo v3 is in solo-learn's current main")
def test_mocov3_has_its_filter_behind_the_momentum_projector(chosen):
    torch.manual_seed(0)
    model = methods.build(configure("method=mocov3", f"filter={chosen}"))
    model.train()
    data = batch()
    q, k = [], []
    model.predictor.register_forward_hook(lambda module, args, p: q.append(normalize(p, dim=1)))
    model.target_head.register_forward_hook(lambda module, args, z: k.append(normalize(z, dim=1)))
    loss = loss_of(model, data)
    temperature, labels = model.temperature, torch.arange(16)
    want = sum(
        2 * temperature * torch.nn.functional.cross_entropy(a @ b.T / temperature, labels)
        for a, b in zip(q, reversed(k))
    )
    classifier = sum(
        torch.nn.functional.cross_entropy(model.classifier(model.backbone(x)), data[2])
        for x in data[1]
    )
    torch.testing.assert_close(loss, want + classifier / 2, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["method=nnsiam", "method.kwargs.queue_size=500"], "must be a multiple of the 64 rows"),
        (["method=mocov2plus", "method.kwargs.queue_size=32"], "64 is the nearest"),
        (["method=wmse", "method.kwargs.whitening_size=0"], "whitening_size must be"),
        (["method=nnsiam", "method.kwargs.queue_size=null"], "queue_size must be"),
        (["method=deepclusterv2", "method.kwargs.num_prototypes=[many]"], "num_prototypes must be"),
        (["method=wmse", "method.kwargs.whitening_size=48"], "must divide batch_size=64"),
        (["method=wmse", "method.kwargs.proj_output_dim=64"], "cannot be whitened in"),
        (["method=deepclusterv2", "method.kwargs.num_prototypes=[2000,2000]"], "1408 here"),
        (["method=deepclusterv2", "method.kwargs.num_prototypes=[9,8]"], "must all be equal"),
        (["method=simclr", "filter=target_pow"], "has no place for one, since its two branches"),
        (["method=vicreg", "method.kwargs.cov_loss_weight=-1"], "cov_loss_weight must be"),
    ],
)
def test_what_no_step_could_use_is_refused_before_the_first(options, message, tmp_path):
    with pytest.raises(ValueError, match=re.escape(message)):
        run(tmp_path / "run", *options)


def test_a_method_that_is_not_here_says_where_it_is(tmp_path):
    absent = [name for name in METHODS if name not in HERE]
    assert absent or solo_learn.CURRENT
    for name in absent:
        with pytest.raises(ValueError, match="in its current main; put a checkout"):
            run(tmp_path / name, f"method={name}")
    with pytest.raises(ValueError, match="no second branch"):
        method("mae")


def test_every_method_of_solo_learns_own_table_is_here_or_said_not_to_be():
    own = {name for name, kind in solo_learn.TABLE.items() if kind.__module__.startswith("solo.")}
    known = {*HERE} - OURS_ALONE | ({*NOT_HERE} if solo_learn.CURRENT else set())
    assert own - NO_METHODS == known


def test_defaults_are_those_of_solo_learns_own_files():
    """Sizes, momentum and optimiser of every method that has a file for CIFAR in its repository."""
    folder = Path(sys.modules["solo"].__path__[0]).parent / "scripts" / "pretrain" / "cifar"
    if not folder.is_dir():
        pytest.skip("solo-learn's release has no files of settings")
    for name in THEIRS:
        path = folder / f"{'barlow' if name == 'barlow_twins' else name}.yaml"
        theirs, ours = OmegaConf.load(path), OmegaConf.load(ROOT / f"conf/method/{name}.yaml")
        kwargs = ours.method.kwargs
        others = {
            key
            for key, value in theirs.method_kwargs.items()
            if key not in kwargs or kwargs[key] != value
        }
        assert others == NOT_TAKEN_OVER.get(name, {}).keys(), name
        for key in ("lr", "classifier_lr", "weight_decay", "name") if "optimizer" in ours else ():
            assert ours.optimizer[key] == theirs.optimizer[key], (name, key)
        if METHODS[name].momentum:
            assert ours.method.momentum.base_tau == theirs.momentum.base_tau
            assert ours.method.momentum.final_tau == theirs.momentum.final_tau
