"""Where the branches are heard: our methods against the formulas, solo-learn's own as they are."""

from __future__ import annotations

import pytest
import torch
from conftest import as_it_is
from test_methods import batch, configure, loss_of, make
from torch import nn
from torch.nn.functional import normalize

from rdm_solo import host
from rdm_solo.observe import Observer, observer

pytestmark = pytest.mark.filterwarnings("ignore:You are trying to `self.log")


def step(model, data=None) -> tuple[Observer, list[torch.Tensor]]:
    """One training step, listened to."""
    data = data or batch()
    ears = observer(model)
    ears.attach()
    ears.listen(len(data[2]))
    loss_of(model, data)
    heard = list(ears.take(2))
    ears.detach()
    return ears, heard


def test_swav_is_heard_as_its_softmax_and_its_assignment():
    model = make("method=swav", "method.kwargs.num_prototypes=24")
    model.sk = host.sinkhorn(model)
    data = batch()
    ears, (online, target, positive, projection) = step(model, data)
    with torch.no_grad():
        logits = [model.prototypes(normalize(model.projector(model.backbone(x)))) for x in data[1]]
    want = torch.cat([(x / 0.1).softmax(1) for x in logits])
    torch.testing.assert_close(online, want, rtol=1e-4, atol=1e-6)
    assert torch.equal(projection, online)
    # Sinkhorn's assignment: exp(logits / eps), columns and rows scaled to equal sums, by hand.
    assigned = []
    for x in logits:
        q = (x.double() / 0.05).exp()
        for _ in range(3):
            q = q / q.sum(0, keepdim=True) / q.shape[1]
            q = q / q.sum(1, keepdim=True) / q.shape[0]
        assigned.append(q * len(q))
    torch.testing.assert_close(target.double(), torch.cat(assigned), rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(target.sum(1), torch.ones(32))
    assert torch.equal(positive, target.roll(16, 0))
    assert not ears.normalize


def test_dino_is_heard_before_its_centre_moves():
    model = make("method=dino", "method.kwargs.num_prototypes=24")
    loss = model.dino_loss_func
    loss.center += torch.randn(24, generator=torch.Generator().manual_seed(3))
    center = loss.center.clone()
    data = batch()
    ears, (online, target, positive, projection) = step(model, data)
    assert not torch.equal(center, loss.center)
    with torch.no_grad():
        student = torch.cat([model.head(model.backbone(x)) for x in data[1]])
        teacher = torch.cat([model.momentum_head(model.momentum_backbone(x)) for x in data[1]])
    sharp = float(loss.teacher_temp_schedule[0])
    close = {"rtol": 1e-4, "atol": 1e-6}
    torch.testing.assert_close(online, (student / 0.1).softmax(1), **close)
    torch.testing.assert_close(target, ((teacher - center) / sharp).softmax(1), **close)
    torch.testing.assert_close(projection, (teacher / 0.1).softmax(1), **close)
    assert torch.equal(positive, target.roll(16, 0))
    assert not ears.normalize


@pytest.mark.parametrize(
    ("options", "centred", "temperature"),
    [
        ([], True, 0.07),
        (["method.centring=false"], False, 0.07),
        (["method.sharpening=false"], True, 0.1),
    ],
)
def test_dinos_centring_and_sharpening_can_be_switched_off(options, centred, temperature):
    model = make("method=dino", "method.kwargs.num_prototypes=24", *options)
    loss_of(model, batch())
    loss = model.dino_loss_func
    assert bool(loss.center.abs().max() > 0) is centred
    assert set(loss.teacher_temp_schedule) == {temperature}


@pytest.mark.parametrize("method", ["symsimsiam", "vanilla"])
def test_symmetric_branches_are_one(method):
    model = make(f"method={method}")
    data = batch()
    _, (online, target, positive, _) = step(model, data)
    want = torch.cat([model.projector(model.backbone(x)) for x in data[1]])
    torch.testing.assert_close(online, want.detach(), rtol=1e-4, atol=1e-5)
    assert torch.equal(online, target)
    assert torch.equal(positive, online.roll(16, 0))


FOREIGN = {
    "simsiam": {"pred_hidden_dim": 16},
    "byol": {"pred_hidden_dim": 16},
    "nnsiam": {"pred_hidden_dim": 16, "queue_size": 64},
    "mocov2plus": {"temperature": 0.2, "queue_size": 64},
    "simclr": {"temperature": 0.2},
    "barlow_twins": {"lamb": 0.005, "scale_loss": 0.1},
    "vicreg": {"sim_loss_weight": 25.0, "var_loss_weight": 25.0, "cov_loss_weight": 1.0},
    "swav": {"num_prototypes": 24, "temperature": 0.1, "sk_iters": 3, "sk_epsilon": 0.05},
    "dino": {"num_prototypes": 24, "clip_grad": 0, "freeze_last_layer": 1},
}
FOREIGN["swav"] |= {"queue_size": 0, "epoch_queue_starts": 0, "freeze_prototypes_epochs": 1}
FOREIGN["dino"] |= {"student_temperature": 0.1, "teacher_temperature": 0.07}
FOREIGN["dino"] |= {"warmup_teacher_temperature": 0.04, "warmup_teacher_temperature_epochs": 0}
FOREIGN["dino"] |= {"norm_last_layer": True, "use_bn_in_head": False}


def foreign(name: str, make=None):
    """solo-learn's own class of the installed generation, without a line of ours in it."""
    momentum = "method=byol" if name in ("byol", "dino", "mocov2plus") else "method=simsiam"
    cfg = configure(momentum, "backbone.name=resnet18", "backbone.kwargs.zero_init_residual=false")
    cfg.method.name = name
    cfg.method.kwargs = {"proj_hidden_dim": 32, "proj_output_dim": 16, **FOREIGN[name]}
    torch.manual_seed(0)
    return make(cfg) if make else as_it_is(name, cfg)


@pytest.mark.parametrize("name", FOREIGN)
def test_solo_learns_own_methods_are_heard(name):
    model = foreign(name)
    assert type(model).__module__.startswith("solo.")
    if name == "swav":
        model.sk = host.sinkhorn(model)
    if hasattr(model, "momentum_projector"):  # which starts as a copy of the other
        nn.init.normal_(model.momentum_projector[-1].weight)
    ears, outputs = step(model, batch(8, channels=3, size=16))
    outputs_of = 24 if name in ("swav", "dino") else 16
    assert {tuple(x.shape) for x in outputs} == {(16, outputs_of)}
    assert all(x.isfinite().all() and not x.requires_grad for x in outputs)
    online, target, positive, _ = outputs
    assert torch.equal(positive, target.roll(8, 0))
    symmetric = name in ("simclr", "barlow_twins", "vicreg")
    assert torch.equal(online, target) is symmetric
    assert ears.normalize is (name not in ("swav", "dino"))


def test_a_module_without_branches_is_refused():
    with pytest.raises(ValueError, match="Linear has none of the parts"):
        observer(nn.Linear(2, 2))


def test_a_step_in_which_nothing_was_heard_is_an_error():
    model = make("method=simsiam")
    ears = observer(model)
    ears.attach()
    loss_of(model, batch())
    with pytest.raises(RuntimeError, match="nothing passed"):
        ears.take(2)
