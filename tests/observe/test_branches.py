"""What is recorded of both branches of our methods and of solo-learn's own."""

import pytest
import torch
from support.small_methods import batch, foreign, loss_of, make
from torch import nn
from torch.nn.functional import normalize

from rdm_solo.methods import solo_learn
from rdm_solo.methods.descriptions import METHODS
from rdm_solo.observe.branches import Observer
from rdm_solo.observe.outputs import Outputs
from rdm_solo.observe.parts import observer


def record_step(model, data=None) -> tuple[Observer, Outputs]:
    """Record one training step of two views."""
    watching = observer(model)
    watching.record_next_step()
    loss_of(model, data or batch())
    outputs = watching.pop_outputs(2)
    watching.detach()
    return watching, outputs


def assert_close(actual: torch.Tensor, expected: torch.Tensor, rtol=1e-4, atol=1e-6) -> None:
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=atol)


def assert_logits(watching: Observer, outputs: Outputs, logits: torch.Tensor) -> None:
    """The logits are the recorded input of the last layer times its weight-normed weight."""
    weight = watching.weight()
    torch.testing.assert_close(weight.norm(dim=1), torch.ones(len(weight)))
    assert_close(outputs.hidden @ weight.T, logits, atol=1e-5)
    assert outputs.projection is outputs.online
    assert not watching.normalize


@torch.no_grad()
def unit_projections(model, data) -> list[torch.Tensor]:
    return [normalize(model.projector(model.backbone(view))) for view in data[1]]


def sinkhorn(logits: torch.Tensor) -> torch.Tensor:
    """Return SwAV's assignment: exp(logits / eps), columns and rows scaled to equal sums."""
    q = (logits.double() / 0.05).exp()
    for _ in range(3):
        q = q / q.sum(0, keepdim=True) / q.shape[1]
        q = q / q.sum(1, keepdim=True) / q.shape[0]
    return q * len(q)


def test_swav_is_recorded_as_its_softmax_and_its_assignment():
    model = make("method=swav", "method.kwargs.num_prototypes=24")
    solo_learn.add_sinkhorn(model)
    data = batch()
    watching, outputs = record_step(model, data)
    logits = [model.prototypes(z).detach() for z in unit_projections(model, data)]
    assert_logits(watching, outputs, torch.cat(logits))
    assert_close(outputs.online, (torch.cat(logits) / 0.1).softmax(1))
    assignments = torch.cat([sinkhorn(x) for x in logits])
    assert_close(outputs.target.double(), assignments, rtol=1e-3, atol=1e-5)
    assert torch.equal(outputs.positive, outputs.target.roll(16, 0))


def test_swavs_queue_is_not_recorded():
    """Its rows go through the prototypes and Sinkhorn as well, behind those of the crops."""
    options = ["method.kwargs.queue_size=32", "method.kwargs.epoch_queue_starts=0"]
    model = make("method=swav", "method.kwargs.num_prototypes=24", *options)
    solo_learn.add_sinkhorn(model)
    queue = torch.randn(2, 32, model.proj_output_dim)
    model.register_buffer("queue", normalize(queue, dim=2))
    data = batch()
    _, outputs = record_step(model, data)
    assert_close(outputs.hidden, torch.cat(unit_projections(model, data)))
    assert {len(x) for x in outputs[:-1]} == {32}


def test_dino_is_recorded_before_its_centre_moves():
    model = make("method=dino", "method.kwargs.num_prototypes=24")
    nn.init.normal_(model.momentum_head.last_layer.weight_v)  # initially a copy of the student's
    loss = model.dino_loss_func
    loss.center += torch.randn(24, generator=torch.Generator().manual_seed(3))
    center = loss.center.clone()
    data = batch()
    watching, outputs = record_step(model, data)
    assert not torch.equal(center, loss.center)
    with torch.no_grad():
        student = torch.cat([model.head(model.backbone(x)) for x in data[1]])
        teacher = torch.cat([model.momentum_head(model.momentum_backbone(x)) for x in data[1]])
    temperature = float(loss.teacher_temp_schedule[0])
    assert_logits(watching, outputs, student)
    assert_close(outputs.online, (student / 0.1).softmax(1))
    assert_close(outputs.target, ((teacher - center) / temperature).softmax(1))
    assert torch.equal(outputs.positive, outputs.target.roll(16, 0))


@pytest.mark.parametrize(
    ("option", "is_centred", "temperature"),
    [
        ("method.centring=true", True, 0.07),
        ("method.centring=false", False, 0.07),
        ("method.sharpening=false", True, 0.1),
    ],
)
def test_dinos_centring_and_sharpening_can_be_switched_off(option, is_centred, temperature):
    model = make("method=dino", "method.kwargs.num_prototypes=24", option)
    loss_of(model, batch())
    assert bool(model.dino_loss_func.center.any()) is is_centred
    assert set(model.dino_loss_func.teacher_temp_schedule) == {temperature}


def test_deepclusters_target_is_the_cluster_of_the_epoch():
    """Images that k-means has not seen are left out; in the first epoch it has seen none."""
    model = make("method=deepclusterv2", "method.kwargs.num_prototypes=[5,5]")
    model.assignments = torch.full((2, 20), -1)
    model.local_memory_index = torch.zeros(16, dtype=torch.long)
    model.local_memory_embeddings = torch.zeros(2, 16, model.proj_output_dim)
    data = batch()
    assert len(record_step(model, data)[1].target) == 0
    clusters = torch.arange(20) % 5
    clusters[[3, 7]] = -1
    model.assignments = torch.stack([clusters, clusters])
    _, outputs = record_step(model, data)
    seen = [i for i in range(16) if i not in (3, 7)]
    assert torch.equal(outputs.target.argmax(1), clusters[seen].repeat(2))
    assert torch.equal(outputs.target.sum(1), torch.ones(28))
    assert torch.equal(outputs.positive, outputs.target)
    z = torch.cat([view[seen] for view in unit_projections(model, data)])
    logits = model.prototypes[0](z).detach() / model.temperature
    assert_close(outputs.online, logits.softmax(1))
    assert_close(outputs.hidden, z)
    assert outputs.projection is outputs.online
    assert "update_memory_banks" not in vars(model)


@pytest.mark.parametrize("method", ["symsimsiam", "vanilla"])
def test_symmetric_branches_are_one(method):
    model = make(f"method={method}")
    data = batch()
    _, outputs = record_step(model, data)
    z = torch.cat([model.projector(model.backbone(x)) for x in data[1]])
    assert_close(outputs.online, z.detach(), atol=1e-5)
    assert outputs.online is outputs.target
    assert torch.equal(outputs.positive, outputs.online.roll(16, 0))


@pytest.mark.parametrize(
    "name",
    ["barlow_twins", "byol", "dino", "mocov2plus", "nnbyol", "nnclr", "ressl", "simsiam", "swav"],
)
def test_solo_learns_own_methods_are_recorded(name):
    model = foreign(name)
    assert type(model).__module__.startswith("solo.")
    if name == "swav":
        solo_learn.add_sinkhorn(model)
    if hasattr(model, "momentum_projector"):  # initially a copy of the online projector
        nn.init.normal_(model.momentum_projector[-1].weight)
    watching, outputs = record_step(model, batch(8, channels=3, size=16))
    online, target, positive, projection, hidden, features = outputs
    if name in ("dino", "mocov2plus", "ressl"):  # a momentum network, and no predictor
        assert torch.equal(projection, online)
        assert not torch.equal(projection, target)
    if name == "ressl" and not solo_learn.CURRENT:  # 1.0.2 projects one view in each branch
        assert online.shape == target.shape == (8, 16)
        assert positive is None
        return
    is_softmax = name in ("swav", "dino")
    for x in (online, target, positive, projection):
        assert x.shape == (16, 24 if is_softmax else 16)
        assert x.isfinite().all()
        assert not x.requires_grad
    assert [len(x) for x in features] == [8, 8]
    if is_softmax:
        assert hidden.shape == (16, 16)
        assert watching.weight().shape == (24, 16)
    else:
        assert hidden is None
        assert watching.weight() is None
    assert watching.m == (128 if name in ("byol", "nnbyol") else 512)
    assert watching.normalize is not is_softmax
    assert torch.equal(positive, target.roll(8, 0))
    assert torch.equal(online, target) is (name == "barlow_twins")
    if METHODS[name].neighbours:  # rows of the queue, which is random at first
        queue = foreign(name).queue
        for row in target:
            assert (queue == row).all(1).any()


def test_two_observers_of_one_method_leave_it_as_it_was():
    model = foreign("nnclr")
    observers = [observer(model), observer(model)]
    for watching in observers:
        watching.record_next_step()
    loss_of(model, batch(8, channels=3, size=16))
    first, second = (watching.pop_outputs().target for watching in observers)
    assert torch.equal(first, second)
    for watching in reversed(observers):
        assert "find_nn" in vars(model)
        watching.detach()
    assert "find_nn" not in vars(model)
