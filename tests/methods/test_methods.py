"""The methods against their formulas, and across solo-learn's two versions."""

import re

import pytest
import torch
from conftest import ROOT
from support.small_methods import FILTERS, batch, configure, loss_of, make
from torch.nn.functional import cosine_similarity, cross_entropy

from rdm_solo import methods
from rdm_solo.filters import SpectralFilter
from rdm_solo.ground.errors import UserError
from rdm_solo.ground.lightning import pl
from rdm_solo.methods import models, optimizers, solo_learn

# A method's own predictor, another one, and a filter on either side.
KINDS = ("learnable", "linear", "online_log1p", "target_pow")


def project(model, x):
    """Return the projection before any filter."""
    return model.projector(model.backbone(x))


def classifier_loss(model, data):
    _, views, labels = data
    logits = (model.classifier(model.backbone(x).detach()) for x in views[:2])
    return sum(cross_entropy(x, labels) for x in logits) / 2


@pytest.mark.parametrize("name", KINDS)
def test_simsiams_loss_is_the_formula(name):
    model, data = make("method=simsiam", f"filter={name}"), batch()
    loss = loss_of(model, data)
    z = [project(model, x) for x in data[1]]
    p = [model.predictor(v) for v in z]
    t = [model.target_head(v).detach() for v in z]
    expected = -(cosine_similarity(p[0], t[1]).mean() + cosine_similarity(p[1], t[0]).mean()) / 2
    expected = expected + classifier_loss(model, data)
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", KINDS)
def test_byols_loss_is_the_formula_with_multi_crop(name):
    model, data = make("method=byol", f"filter={name}", crops=(2, 1)), batch(small=1)
    loss = loss_of(model, data)
    p = [model.predictor(project(model, x)) for x in data[1]]
    with torch.no_grad():
        z = [model.momentum_projector[:-1](model.momentum_backbone(x)) for x in data[1][:2]]
        t = [model.target_head(v) for v in z]
    pairs = [(v1, v2) for v1 in range(2) for v2 in range(3) if v1 != v2]
    expected = sum(2 - 2 * cosine_similarity(p[v2], t[v1]).mean() for v1, v2 in pairs)
    expected = expected + classifier_loss(model, data)
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", FILTERS)
def test_the_filter_is_in_its_place_and_the_encoder_learns(name):
    model, seen = make("method=simsiam", f"filter={name}"), {}
    model.predictor.register_forward_hook(lambda m, a, out: seen.update(z=a[0], p=out))
    model.target_head.register_forward_hook(lambda m, a, out: seen.update(into=a[0], t=out))
    loss_of(model, batch()).backward()
    gradients = [p.grad for p in model.backbone.parameters()]
    assert all(g is not None and g.isfinite().all() for g in gradients)
    assert any(g.abs().max() > 0 for g in gradients)
    online, target = not torch.equal(seen["z"], seen["p"]), not torch.equal(seen["into"], seen["t"])
    place, _, function = name.partition("_")
    assert online == (name != "identity" and place != "target")
    assert target == (place in ("target", "both"))
    branches = ["online", "target"] if place == "both" else [place]
    assert [f.branch for f in model.filters] == (branches if function else [])


def test_one_filter_on_both_branches_gives_them_the_same_output():
    model = make("method=simsiam", "filter=target_pow", "filter.branch=both", "p=-1")
    assert [f.branch for f in model.filters] == ["online", "target"]
    z, p, target = model.branches(torch.randn(16, 64))
    torch.testing.assert_close(p, target, rtol=1e-5, atol=1e-6)
    assert not torch.allclose(p, z)


@pytest.mark.parametrize("stopped", ["target", "online", "none"])
@pytest.mark.parametrize("name", ["identity", "online_pow", "target_pow"])
def test_the_stopped_branch_has_no_gradient_and_w_is_a_constant(stopped, name):
    """The gradient at the features of both views, from matrices W that are not differentiated."""
    model = make("method=simsiam", f"filter={name}", f"method.stop_gradient={stopped}")
    x = [torch.randn(64, 64, requires_grad=True) for _ in range(2)]
    sides = [model.branches(features) for features in x]
    loss = sum(-cosine_similarity(sides[i][1], sides[1 - i][2]).mean() / 2 for i in (0, 1))
    loss.backward()
    got = [features.grad for features in x]
    assert torch.equal(loss, sum(model.compare(*sides[i][:2], sides[1 - i][2]) / 2 for i in (0, 1)))
    y = [features.detach().clone().requires_grad_() for features in x]
    z = [model.projector(features) for features in y]
    W = [torch.linalg.lstsq(v.detach(), model.target_head(v).detach()).solution for v in z]
    V = [torch.linalg.lstsq(v.detach(), model.predictor(v).detach()).solution for v in z]
    p, t = [v @ m for v, m in zip(z, V)], [v @ m for v, m in zip(z, W)]
    p = [v.detach() for v in p] if stopped == "online" else p
    t = [v.detach() for v in t] if stopped == "target" else t
    sum(-cosine_similarity(p[i], t[1 - i]).mean() / 2 for i in (0, 1)).backward()
    for a, b in zip(got, y):
        torch.testing.assert_close(a, b.grad, rtol=2e-3, atol=1e-6)


def test_a_learned_predictor_learns_if_the_online_branch_is_stopped():
    model = make("method=simsiam", "filter=learnable", "method.stop_gradient=online")
    _, p, target = model.branches(torch.randn(64, 64))
    (-cosine_similarity(p, target).mean()).backward()
    assert all(weight.grad is not None for weight in model.predictor.parameters())


def test_isoloss_has_the_value_of_the_squared_error_and_its_gradient_without_w():
    z, target = torch.randn(16, 4, dtype=torch.float64), torch.randn(16, 4, dtype=torch.float64)
    for W in (torch.eye(4).double(), torch.diag(torch.tensor([1.0, 0.5, 0.2, 0.1])).double()):
        gradients = {}
        for name in ("mse", "iso"):
            leaf = z.clone().requires_grad_()
            loss = models.LOSSES[name](leaf, leaf @ W, target)
            assert loss.item() == pytest.approx(float((z @ W - target).square().sum(1).mean()))
            loss.backward()
            gradients[name] = leaf.grad
        expected = 2 * (z @ W - target) / len(z)
        torch.testing.assert_close(gradients["iso"], expected, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(gradients["mse"], expected @ W.mT, rtol=1e-12, atol=1e-12)


def test_bf16_features_reach_the_filter_in_float32():
    model, dtypes = make("method=byol", "filter=target_pow"), set()
    model.filters[0].register_forward_hook(lambda m, a, out: dtypes.add(a[0].dtype))
    with torch.autocast("cpu", torch.bfloat16):
        loss = loss_of(model, batch(64))
    loss.backward()
    assert dtypes == {torch.float32}
    assert loss.isfinite()


def test_filters_add_no_parameters_and_change_no_names():
    plain = make("method=simsiam", "filter=identity").state_dict()
    filtered = make("method=simsiam", "filter=target_pow").state_dict()
    assert plain.keys() == filtered.keys()
    assert all(map(torch.equal, plain.values(), filtered.values()))
    assert any(key.startswith("backbone.") for key in plain)
    assert not any(key.startswith("encoder.") for key in plain)


def test_a_function_by_its_full_name():
    model = make("filter=online_log1p", "filter.function=torch.sqrt")
    x = torch.randn(8, 4)
    assert torch.equal(model.filters[0](x), SpectralFilter("online", torch.sqrt)(x))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ("filter=target_pow p=null", "needs an exponent"),
        ("method.kwargs.proj_hidden_dim=-1", "method.kwargs.proj_hidden_dim must be a number"),
        ("method=dino method.kwargs.norm_last_layer=no", "or true or false, got 'no'"),
        ("method=deepclusterv2 method.kwargs.num_prototypes=[9,8]", "must all be equal"),
        ("filter=online_log filter.branch=left", "got 'left'"),
        ("filter=online_truncate +filter.kept=3", "unexpected keyword argument 'kept'"),
    ],
)
def test_refusals(overrides, message):
    with pytest.raises(UserError, match=re.escape(message)):
        methods.build(configure(*overrides.split()))


def test_one_module_imports_solo_learn():
    pattern = re.compile(r"^\s*(import|from)\s+solo\b|import_module\(.solo|\bsolo\.methods", re.M)
    files = (ROOT / "rdm_solo").rglob("*.py")
    assert {path.name for path in files if pattern.search(path.read_text())} == {"solo_learn.py"}
    assert issubclass(solo_learn.TABLE["base"], pl.LightningModule)


@pytest.mark.parametrize("kind", ["Adam", "AdamW", "SGD"])
def test_an_optimiser_is_torchs(kind):
    rates = ["optimizer.lr=0.3", "optimizer.weight_decay=0.01"]
    cfg = configure(f"optimizer.name={kind.lower()}", *rates)
    groups = [{"params": torch.nn.Linear(5, 3).parameters()}]
    optimizer = optimizers.configure(groups, cfg, steps=30)["optimizer"]
    assert type(optimizer) is getattr(torch.optim, kind)
    (group,) = optimizer.param_groups
    assert (group["initial_lr"], group["weight_decay"]) == (0.3, 0.01)
    assert group.get("momentum", 0.9) == 0.9


def test_lars_is_the_formula_and_leaves_biases_and_norms_alone():
    """LARS with solo-learn's semantics, written out in float64."""
    cfg = configure("method=byol", "dataset=cifar10")
    cfg.optimizer.trust_clip = False
    torch.manual_seed(0)
    layer = torch.nn.Linear(5, 3)
    w, b = (p.detach().double().clone() for p in (layer.weight, layer.bias))
    groups = [{"params": layer.parameters()}]
    optimizer = optimizers.configure(groups, cfg, steps=1000)["optimizer"]
    lr, decay, eta, momentum = 1.0, cfg.optimizer.weight_decay, 0.02, 0.9
    for group in optimizer.param_groups:
        group["lr"] = lr
    v_w, v_b = torch.zeros_like(w), torch.zeros_like(b)
    for step in range(3):
        x = torch.randn(4, 5, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        layer(x).square().sum().backward()
        g_w, g_b = layer.weight.grad.double(), layer.bias.grad.double()
        optimizer.step()
        trust = eta * w.norm() / (g_w.norm() + decay * w.norm())
        v_w = momentum * v_w + trust * (g_w + decay * w)
        v_b = momentum * v_b + g_b
        w, b = w - lr * v_w, b - lr * v_b
        torch.testing.assert_close(layer.weight.detach().double(), w, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(layer.bias.detach().double(), b, rtol=1e-5, atol=1e-6)
