"""The methods against their formulas, and across solo-learn's two versions."""

import re

import pytest
import torch
from conftest import ROOT
from support.small_methods import batch, classifier_loss, configure, loss_of, make
from torch.autograd import grad
from torch.nn.functional import cosine_similarity
from torch.testing import assert_close

from rdm_solo import methods
from rdm_solo.filters import SpectralFilter
from rdm_solo.ground.errors import UserError
from rdm_solo.ground.lightning import pl
from rdm_solo.methods import models, optimizers

# A method's own predictor, another one, and a filter on either side.
KINDS = ["learnable", "linear", "online_log1p", "target_pow"]


@pytest.mark.parametrize(
    ("method", "small", "offset", "weight"),
    [
        ("simsiam", 0, 0, 0.5),
        ("byol", 1, 2, 2),
    ],
)
@pytest.mark.parametrize("name", KINDS)
def test_the_loss_is_the_formula_also_with_multi_crop(name, method, small, offset, weight):
    model = make(f"method={method}", f"filter={name}", crops=(2, small))
    data = batch(small=small)
    loss = loss_of(model, data)
    backbone, projector = model.backbone, model.projector
    if method == "byol":  # the target filter is the momentum projector's last layer
        backbone, projector = model.momentum_backbone, model.momentum_projector[:-1]
    expected = classifier_loss(model, data)
    for i, target_view in enumerate(data[1][:2]):
        target = model.target_head(projector(backbone(target_view)))
        for j, view in enumerate(data[1]):
            if i != j:
                z = model.projector(model.backbone(view))
                cosine = cosine_similarity(model.predictor(z), target)
                expected = expected + offset - weight * cosine.mean()
    assert_close(loss, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["learnable", "online_log1p", "target_pow", "both_pow"])
def test_a_filter_is_on_its_branch(name):
    model = make("method=simsiam", f"filter={name}")
    place, _, function = name.partition("_")
    heads = {"online": model.predictor, "target": model.target_head}
    for branch, module in heads.items():
        if function and place in (branch, "both"):
            assert (module.branch, module.function) == (branch, function)
        else:
            assert not isinstance(module, SpectralFilter)


@pytest.mark.parametrize("stopped", ["target", "online", "none"])
@pytest.mark.parametrize("name", ["identity", "online_pow", "target_pow"])
def test_the_stopped_branch_has_no_gradient_and_w_is_a_constant(stopped, name):
    """Compare the features' gradient with that of a matrix W that is not differentiated."""
    model = make("method=simsiam", f"filter={name}", f"method.stop_gradient={stopped}")
    features = torch.randn(64, 64, requires_grad=True)
    z = model.projector(features)
    constant = z.detach()
    _, [p], [target] = model.branches([features])
    heads = {"online": (p, model.predictor), "target": (target, model.target_head)}
    for branch, (output, head) in heads.items():
        if branch == stopped:
            assert not output.requires_grad
            continue
        W = torch.linalg.lstsq(constant, head(constant)).solution
        direction = torch.randn_like(output)
        gradients = []
        for result in (output, z @ W):
            gradients += grad(result, features, direction, retain_graph=True)
        assert_close(*gradients, rtol=1e-4, atol=1e-4)


def test_a_learned_predictor_learns_if_the_online_branch_is_stopped():
    model = make("method=simsiam", "filter=learnable", "method.stop_gradient=online")
    _, [p], [target] = model.branches([torch.randn(64, 64)])
    cosine_similarity(p, target).mean().backward()
    assert all(weight.grad is not None for weight in model.predictor.parameters())


def test_isoloss_has_the_value_of_the_squared_error_and_its_gradient_without_w():
    target, z, W = torch.randn(3, 4, 4, dtype=torch.float64)
    z.requires_grad_()
    p = z @ W
    error = p - target
    squared_error = error.square().sum(1).mean()
    iso = models.LOSSES["iso"](z, p, target)
    assert_close(models.LOSSES["mse"](z, p, target), squared_error)
    assert_close(iso, squared_error)
    (gradient,) = grad(iso, z)
    assert_close(gradient, 2 * error / len(z), rtol=1e-12, atol=1e-12)


def test_bf16_features_reach_the_filter_in_float32():
    model = make("method=byol", "filter=target_pow")
    dtypes = set()

    def record(module, inputs):
        (x,) = inputs
        dtypes.add(x.dtype)

    model.filters[0].register_forward_pre_hook(record)
    with torch.autocast("cpu", torch.bfloat16):
        loss_of(model, batch(64)).backward()
    assert dtypes == {torch.float32}


def test_filters_add_no_parameters_and_change_no_names():
    plain = make("method=simsiam", "filter=identity").state_dict()
    filtered = make("method=simsiam", "filter=target_pow").state_dict()
    assert_close(filtered, plain, rtol=0, atol=0)
    prefixes = {name.partition(".")[0] for name in plain}
    assert prefixes == {"backbone", "classifier", "projector"}


def test_a_function_by_its_full_name():
    model = make("filter=online_log1p", "filter.function=torch.sqrt")
    expected = SpectralFilter("online", torch.sqrt)
    x = torch.randn(8, 4)
    assert torch.equal(model.predictor(x), expected(x))


@pytest.mark.parametrize(
    ("overrides", "option"),
    [
        ("filter=learnable p=1", "p=1"),
        ("method.kwargs.proj_hidden_dim=-1", "method.kwargs.proj_hidden_dim"),
        ("method=dino method.kwargs.norm_last_layer=no", "'no'"),
        ("filter=online_truncate +filter.kept=3", "'kept'"),
        ("method=symsimsiam method.center=mean", "method.center"),
    ],
)
def test_refusals(overrides, option):
    with pytest.raises(UserError, match=option):
        methods.build(configure(*overrides.split()))


def test_one_module_imports_solo_learn():
    pattern = re.compile(r"^\s*(import|from)\s+solo\b|import_module\(.solo|\bsolo\.methods", re.M)
    names = []
    for path in ROOT.glob("rdm_solo/**/*.py"):
        if pattern.search(path.read_text()):
            names.append(path.name)
    assert names == ["solo_learn.py"]


@pytest.mark.parametrize(
    ("logger", "labelled", "logged"),
    [
        ("csv", True, ["train/loss", "val/acc5"]),
        ("tensorboard", True, ["train/loss", "train/acc1", "train/momentum_acc1", "val/acc5"]),
        ("tensorboard", False, ["train/loss"]),
    ],
)
def test_scalars_of_steps_and_of_labels_are_logged_where_they_are_shown(
    logger, labelled, logged, monkeypatch
):
    names = []

    def log(self, name, value, **options):
        names.append(name)

    monkeypatch.setattr(pl.LightningModule, "log", log)
    model = methods.build(configure("method=simsiam", f"logger={logger}"), labelled)
    for name in ("train_neg_cos_sim", "train_acc1", "train_momentum_acc1", "val_acc5", "mine"):
        model.log(name, torch.tensor(1.0))
    assert names == [*logged, "mine"]


@pytest.mark.parametrize("name", ["adam", "adamw", "sgd"])
def test_an_optimiser_is_torchs(name):
    cfg = configure(f"optimizer.name={name}", "optimizer.weight_decay=0.01")
    layer = torch.nn.Linear(5, 3)
    groups = [{"params": layer.parameters()}]
    optimizer = optimizers.configure(groups, cfg, steps=30)["optimizer"]
    assert type(optimizer).__name__.lower() == name
    assert optimizer.defaults["weight_decay"] == 0.01


def test_lars_is_the_formula_and_leaves_biases_and_norms_alone():
    """Compare with LARS in solo-learn's semantics, written out in float64."""
    cfg = configure("method=byol", "dataset=cifar10")
    cfg.optimizer.trust_clip = False
    torch.manual_seed(0)
    layer = torch.nn.Linear(5, 3)
    groups = [{"params": layer.parameters()}]
    optimizer = optimizers.configure(groups, cfg, steps=1000)["optimizer"]
    lr, decay, eta, momentum = 1.0, cfg.optimizer.weight_decay, 0.02, 0.9
    for group in optimizer.param_groups:
        group["lr"] = lr
    w = layer.weight.detach().double()
    b = layer.bias.detach().double()
    v_w = v_b = 0.0
    for _ in range(3):
        optimizer.zero_grad()
        outputs = layer(torch.randn(4, 5))
        outputs.square().sum().backward()
        g_w = layer.weight.grad.double()
        g_b = layer.bias.grad.double()
        optimizer.step()
        length = w.norm()
        trust = eta * length / (g_w.norm() + decay * length)
        v_w = momentum * v_w + trust * (g_w + decay * w)
        v_b = momentum * v_b + g_b
        w = w - lr * v_w
        b = b - lr * v_b
    assert_close(layer.weight.double(), w, rtol=1e-5, atol=1e-6)
    assert_close(layer.bias.double(), b, rtol=1e-5, atol=1e-6)
