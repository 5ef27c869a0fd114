"""What is recorded of both branches of our methods and of solo-learn's own."""

import pytest
import torch
from support.small_methods import batch, foreign, loss_of, make
from torch import nn
from torch.nn.functional import normalize

from rdm_solo.methods import solo_learn
from rdm_solo.methods.descriptions import METHODS
from rdm_solo.observe.parts import observer


def record_step(model, data):
    """Record one training step of two views."""
    watching = observer(model)
    watching.record_next_step()
    loss_of(model, data)
    outputs = watching.pop_outputs(2)
    watching.detach()
    return watching, outputs


def assert_close(actual, expected, rtol=1e-4, atol=1e-6):
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=atol)


def assert_logits(watching, outputs, logits):
    """The logits are the recorded input of the last layer times its weight-normed weight."""
    assert_close(outputs.hidden @ watching.weight().T, logits, atol=1e-5)
    assert outputs.projection is outputs.online
    assert torch.equal(outputs.positive, outputs.target.roll(16, 0))
    assert not watching.normalize


@torch.no_grad()
def unit_projections(model, data):
    network = nn.Sequential(model.backbone, model.projector)
    return [normalize(network(view)) for view in data[1]]


def make_swav(*options):
    return make("method=swav", "method.kwargs.num_prototypes=24", *options)


def sinkhorn(logits):
    """Return SwAV's assignment: exp(logits / eps), columns and rows scaled to equal sums."""
    q = (logits.double() / 0.05).exp()
    for _ in range(3):
        q = q / q.sum(0, keepdim=True) / q.shape[1]
        q = q / q.sum(1, keepdim=True) / q.shape[0]
    return q * len(q)


def test_swav_is_recorded_as_its_softmax_and_its_assignment():
    model = make_swav()
    data = batch()
    watching, outputs = record_step(model, data)
    z = torch.cat(unit_projections(model, data))
    logits = model.prototypes(z).detach()
    assert_logits(watching, outputs, logits)
    assert_close(outputs.online, (logits / 0.1).softmax(1))
    assignments = torch.cat([sinkhorn(view) for view in logits.chunk(2)])
    assert_close(outputs.target.double(), assignments, rtol=1e-3, atol=1e-5)


def test_swavs_queue_is_not_recorded():
    """Its rows go through the prototypes and Sinkhorn as well, behind those of the crops."""
    model = make_swav("method.kwargs.queue_size=32", "method.kwargs.epoch_queue_starts=0")
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
    loss.center += torch.linspace(-1, 1, 24)
    center = loss.center.clone()
    data = batch()
    watching, outputs = record_step(model, data)
    assert not torch.equal(center, loss.center)
    student_model = nn.Sequential(model.backbone, model.head)
    teacher_model = nn.Sequential(model.momentum_backbone, model.momentum_head)
    with torch.no_grad():
        student = torch.cat([student_model(view) for view in data[1]])
        teacher = torch.cat([teacher_model(view) for view in data[1]])
    temperature = float(loss.teacher_temp_schedule[0])
    assert_logits(watching, outputs, student)
    assert_close(outputs.online, (student / 0.1).softmax(1))
    assert_close(outputs.target, ((teacher - center) / temperature).softmax(1))


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
    _, outputs = record_step(model, data)
    assert len(outputs.target) == 0
    clusters = torch.arange(20) % 5
    clusters[[3, 7]] = -1
    model.assignments = torch.stack([clusters, clusters])
    _, outputs = record_step(model, data)
    seen = [i for i in range(16) if i not in (3, 7)]
    one_hot = torch.eye(5)[clusters[seen]].repeat(2, 1)
    assert torch.equal(outputs.target, one_hot)
    assert torch.equal(outputs.positive, one_hot)
    views = unit_projections(model, data)
    z = torch.cat([view[seen] for view in views])
    logits = model.prototypes[0](z).detach() / model.temperature
    assert_close(outputs.online, logits.softmax(1))
    assert_close(outputs.hidden, z)
    assert outputs.projection is outputs.online
    assert "update_memory_banks" not in vars(model)


@pytest.mark.parametrize(
    "name",
    ["barlow_twins", "byol", "dino", "mocov2plus", "nnbyol", "nnclr", "ressl", "simsiam", "swav"],
)
def test_solo_learns_own_methods_are_recorded(name):
    model = foreign(name)
    if hasattr(model, "momentum_projector"):  # initially a copy of the online projector
        nn.init.normal_(model.momentum_projector[-1].weight)
    if METHODS[name].neighbours:
        queue = model.queue.clone()
        first = observer(model)
        first.record_next_step()
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
    assert online.shape == (16, 24 if is_softmax else 16)
    assert [len(x) for x in features] == [8, 8]
    if is_softmax:
        assert hidden.shape == (16, 16)
        assert watching.weight().shape == (24, 16)
    else:
        assert hidden is None
    assert watching.m == (128 if name in ("byol", "nnbyol") else 512)
    assert watching.normalize is not is_softmax
    assert torch.equal(positive, target.roll(8, 0))
    assert torch.equal(online, target) is (name == "barlow_twins")
    if METHODS[name].neighbours:  # rows of the queue before the step
        for row in target:
            assert (queue == row).all(1).any()
        assert torch.equal(first.pop_outputs(2).target, target), "of a second observer"
        assert "find_nn" in vars(model)
        first.detach()
        assert "find_nn" not in vars(model)
