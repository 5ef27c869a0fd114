"""Mistakes in a loop are found in its first steps, and healthy loops raise no finding."""

import pytest
import torch
from support.own_models import BYOL, DIM, SimSiam
from torch import nn
from torch.nn.functional import normalize
from torch.utils.checkpoint import checkpoint

from rdm_solo.observe import parts
from rdm_solo.observe.branches import Branches
from rdm_solo.observe.loop_checks import STEPS, LoopChecks


def images():
    return torch.randn(10, DIM)


def views():
    x = images()
    return x + 0.3 * images(), x + 0.3 * images()


def distance(p, z):
    return -torch.cosine_similarity(p, z, dim=-1).mean()


def project(model, x):
    return model.projection_head(model.backbone(x))


def checked(model, step, lr=0.1, branches=None, update=lambda: None, steps=STEPS, views=None):
    """Train and return the number of each step with findings, the checks and the parts."""
    torch.manual_seed(1)
    checks = LoopChecks(model, branches or parts.find(model), views)
    parameters = [x for x in model.parameters() if x.requires_grad]
    optimizer = torch.optim.SGD(parameters, lr=lr)
    found = []
    for i in range(1, steps + 1):
        optimizer.zero_grad()
        step(model).backward()
        optimizer.step()
        update()
        found += [(i, finding.check, finding.part) for finding in checks.after_step()]
    checks.detach()
    return found


def simsiam(model, stop=torch.Tensor.detach):
    z1, z2 = (project(model, x) for x in views())
    p1, p2 = model.prediction_head(z1), model.prediction_head(z2)
    return distance(p1, stop(z2)) + distance(p2, stop(z1))


def one_view_predicted(model, stop=torch.Tensor.detach):
    z1, z2 = (project(model, x) for x in views())
    return distance(model.prediction_head(z1), stop(z2))


def joined(model, stop=torch.Tensor.detach):
    z1, z2 = (project(model, x) for x in views())
    p = model.prediction_head(torch.cat([z1, z2]))
    return distance(p, stop(torch.cat([z2, z1])))


def same_tensor(model, stop=torch.Tensor.detach):
    z = torch.cat([project(model, x) for x in views()])
    return distance(model.prediction_head(z), stop(z.roll(10, 0)))


def chunked(model, stop=torch.Tensor.detach):
    z1, z2 = project(model, torch.cat(views())).chunk(2)
    p1, p2 = model.prediction_head(z1), model.prediction_head(z2)
    return distance(p1, stop(z2)) + distance(p2, stop(z1))


def predicted_twice(model, stop=torch.Tensor.detach):
    z1, z2 = (project(model, x) for x in views())
    p = model.prediction_head(z1) + model.prediction_head(z1)
    return distance(p, stop(z2))


def normalised(model, stop=torch.Tensor.detach):
    z1, z2 = (project(model, x) for x in views())
    return distance(model.prediction_head(normalize(z1)), stop(normalize(z2)))


def autocast(model, stop=torch.Tensor.detach):
    with torch.autocast("cpu", torch.bfloat16):
        z1, z2 = (project(model, x) for x in views())
        p = [model.prediction_head(z) for z in (z1, z2, z1 + z2)]
    return distance(p[0], stop(z2)) + distance(p[1], stop(z1)) + p[2].float().std()


LOOPS = [
    simsiam,
    one_view_predicted,
    joined,
    same_tensor,
    chunked,
    predicted_twice,
    normalised,
    autocast,
]


@pytest.mark.parametrize("step", LOOPS)
def test_a_missing_stop_gradient_is_found_in_the_first_step(step):
    def mistaken(model):
        return step(model, stop=lambda z: z)

    assert checked(SimSiam(), step) == []
    assert checked(SimSiam(), mistaken) == [(1, "stop-gradient", "projection_head")]


def byol(model):
    model.projection_head_momentum.load_state_dict(model.projection_head.state_dict())
    return model


@torch.no_grad()
def update(model, momentum):
    for name in ("backbone", "projection_head"):
        online, target = getattr(model, name), getattr(model, f"{name}_momentum")
        for p, q in zip(online.parameters(), target.parameters()):
            q.lerp_(p, 1 - momentum)


def with_target(model, no_grad=True):
    x1, x2 = views()
    with torch.set_grad_enabled(not no_grad):
        z = model.projection_head_momentum(model.backbone_momentum(x2))
    return distance(model(x1)[1], z)


def momentum_step(momentum, before, period=1):
    """Return a step that updates the target before or after its forward, every few steps."""
    count = 0

    def step(model):
        nonlocal count
        count += 1
        due = count % period == 0
        if before and due:
            update(model, momentum)
        loss = with_target(model)
        if not before and due:
            loss.register_hook(lambda _: update(model, momentum))
        return loss

    return step


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("momentum", [0.5, 0.99, 0.9999])
def test_a_momentum_target_is_no_mistake(momentum, before):
    assert checked(byol(BYOL()), momentum_step(momentum, before)) == []


@pytest.mark.parametrize("period", [2, 4])
def test_a_target_may_be_copied_at_intervals(period):
    assert checked(byol(BYOL()), momentum_step(0, True, period)) == []


@pytest.mark.parametrize("momentum", [1, 0])
def test_a_target_that_never_moves_or_is_always_copied_is_found(momentum):
    check = "frozen target" if momentum else "copied target"
    names = ["backbone_momentum", "projection_head_momentum"]
    expected = {(STEPS, check, name) for name in names}
    assert set(checked(byol(BYOL()), momentum_step(momentum, True))) == expected
    model = byol(BYOL())
    found = checked(model, with_target, update=lambda: update(model, momentum))
    assert set(found) == expected
    assert checked(byol(BYOL()), momentum_step(momentum, True), lr=0) == []


@pytest.mark.parametrize("step", [simsiam, chunked])
def test_an_encoder_whose_features_stay_as_they_are_is_found(step):
    model = SimSiam()
    model.backbone.requires_grad_(False)
    expected = {(STEPS, "frozen encoder", "backbone")}
    assert set(checked(model, step)) == expected
    assert checked(model, step, lr=0) == []  # nothing moves, as in a warm-up from zero


def detached_features(model):
    z1, z2 = (model.projection_head(model.backbone(x).detach()) for x in views())
    return distance(model.prediction_head(z1), z2.detach())


def test_an_encoder_without_gradient_is_found():
    assert set(checked(SimSiam(), detached_features)) == {(STEPS, "frozen encoder", "backbone")}


def same_views(model):
    x = images()
    z1, z2 = project(model, x), project(model, x)
    return distance(model.prediction_head(z1), z2.detach())


@pytest.mark.parametrize(
    ("step", "is_certain"), [(with_target, False), (detached_features, False), (same_views, True)]
)
def test_a_frozen_part_may_be_intended(step, is_certain):
    model = byol(BYOL())
    checks = LoopChecks(model, parts.find(model))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    findings = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        step(model).backward()
        optimizer.step()
        findings += checks.after_step()
    assert {finding.is_certain for finding in findings} == {is_certain}


def test_gradient_that_reaches_a_momentum_target_is_found():
    def mistaken(model):
        update(model, 0.99)
        return with_target(model, no_grad=False)

    expected = [(1, "stop-gradient", "projection_head_momentum")]
    assert checked(byol(BYOL()), mistaken) == expected


def two_encoders(a, b):
    return nn.ModuleDict({"image": a, "text": b}), Branches("image", "text", False)


@pytest.mark.parametrize(
    ("text", "names"), [(nn.Linear(DIM, 8, bias=False), []), (nn.Linear(DIM, 8), ["text"])]
)
def test_different_encoders_may_be_trained_against_each_other(text, names):
    def step(model):
        x, y = views()
        return distance(model["image"](x), model["text"](y))

    model, branches = two_encoders(nn.Linear(DIM, 8), text)
    expected = [(1, "stop-gradient", name) for name in names]
    assert checked(model, step, branches=branches) == expected


def without_predictor(model, loss=distance):
    z1, z2 = (project(model, x) for x in views())
    return loss(z1, z2)


def test_a_method_without_predictor_and_target_is_no_mistake():
    model = SimSiam()
    del model.prediction_head
    assert checked(model, without_predictor) == []


def test_a_predictor_that_returns_its_input_is_found():
    model = SimSiam()
    model.prediction_head = nn.Identity()
    assert checked(model, simsiam) == [(STEPS, "asymmetry", "prediction_head")]


class ZeroResidual(nn.Linear):
    def forward(self, x):
        return x + super().forward(x)


def test_a_residual_predictor_may_start_as_the_identity():
    model = SimSiam()
    model.prediction_head = ZeroResidual(8, 8)
    nn.init.zeros_(model.prediction_head.weight)
    nn.init.zeros_(model.prediction_head.bias)
    assert checked(model, simsiam) == []


def test_a_filter_on_the_target_replaces_the_predictor():
    model = SimSiam()
    model.prediction_head = nn.Identity()
    model.target_head = nn.Tanh()
    assert (
        checked(model, lambda model: simsiam(model, lambda z: model.target_head(z.detach()))) == []
    )


def test_a_predictor_that_is_not_trained_is_found():
    expected = [(STEPS, "predictor", "prediction_head")]
    model = SimSiam()
    model.prediction_head.requires_grad_(False)
    assert checked(model, simsiam) == expected

    def with_decoder(model):
        z1, z2 = (project(model, x) for x in views())
        with torch.no_grad():
            p = model.prediction_head(z1)
        return distance(p, z2)

    assert checked(SimSiam(), with_decoder)[-1:] == expected


def test_a_predictor_without_weights_is_no_mistake():
    model = SimSiam()
    model.prediction_head = nn.Tanh()
    assert checked(model, simsiam) == []


def same_halves(model):
    x = images()
    z = project(model, torch.cat([x, x]))
    return distance(model.prediction_head(z), z.detach().roll(10, 0))


def once_without_gradient(model):
    x = images()
    with torch.no_grad():
        z = project(model, x)
    return distance(model.prediction_head(project(model, x)), z)


def with_dropout(model):
    x = images()
    z1, z2 = (project(model, nn.functional.dropout(x, 0.1)) for _ in range(2))
    return distance(model.prediction_head(z1), z2.detach())


@pytest.mark.parametrize(
    ("step", "check"), [(same_views, "views"), (same_halves, "views in a batch")]
)
def test_identical_views_are_found(step, check):
    assert checked(SimSiam(), step) == [(STEPS, check, "backbone")]


@pytest.mark.parametrize("step", [same_views, simsiam])
def test_a_single_view_is_compared_with_nothing(step):
    assert checked(SimSiam(), step, views=1) == []


def test_identical_views_are_found_if_a_later_layer_works_in_place():
    model = SimSiam()
    model.backbone.pop(1)
    model.projection_head = nn.Sequential(nn.ReLU(inplace=True), model.projection_head)
    assert checked(model, same_views) == [(STEPS, "views", "backbone")]


def test_dropout_inside_the_network_makes_views():
    model = SimSiam()
    model.backbone.append(nn.Dropout(0.1))
    assert checked(model, same_views) == []


def test_a_network_may_see_a_view_with_and_without_gradient():
    assert checked(SimSiam(), once_without_gradient) == []


def zero_last_layer():
    model = SimSiam()
    nn.init.zeros_(model.prediction_head[-1].weight)
    nn.init.zeros_(model.prediction_head[-1].bias)
    return model


def test_a_constant_head_is_found():
    model = SimSiam()
    model.prediction_head = nn.Sequential(nn.Linear(8, 8), nn.Threshold(1e9, 1.0))
    checks = [check for _, check, _ in checked(model, simsiam)]
    assert "constant" in checks


def test_a_last_layer_may_start_with_zeros():
    assert checked(zero_last_layer(), simsiam) == []


def test_a_batch_of_one_image_is_not_constant():
    def step(model):
        z1, z2 = (project(model, x[:1]) for x in views())
        return distance(model.prediction_head(z1), z2.detach())

    assert checked(SimSiam(), step) == []


def unusual(wrap):
    """Return a step that calls a wrapped model once for each view."""

    def step(model):
        (z1, p1), (z2, p2) = (wrap(model)(x) for x in views())
        return distance(p1, z2.detach()) + distance(p2, z1.detach())

    return step


def checkpointed(reentrant):
    def wrap(model):
        return lambda x: checkpoint(model, x.requires_grad_(), use_reentrant=reentrant)

    return wrap


WRAPS = {
    "compiled": lambda model: torch.compile(model, backend="aot_eager"),
    "DataParallel": lambda model: nn.DataParallel(nn.DataParallel(model)),
    "checkpoint": checkpointed(False),
    "reentrant checkpoint": checkpointed(True),
    "evaluation": lambda model: model.eval(),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("wrap", WRAPS.values(), ids=WRAPS)
def test_unusual_calls_of_a_healthy_loop_are_no_mistake(wrap):
    assert checked(SimSiam(), unusual(wrap)) == []


def test_a_loop_may_accumulate_gradients_and_start_with_a_rate_of_zero():
    model = byol(BYOL())
    checks = LoopChecks(model, parts.find(model), views=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    for i in range(STEPS):
        (with_target(model) / 2).backward()
        assert checks.after_step() == []
        if i % 2:
            optimizer.step()
            optimizer.zero_grad()
            update(model, 0.99)
            optimizer.param_groups[0]["lr"] += 0.05


def test_a_target_may_follow_after_one_accumulated_step():
    """Step 8 updates the target, whose online part is the old one, and then the online part."""
    model = byol(BYOL())
    checks = LoopChecks(model, parts.find(model))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for i in range(1, STEPS + 1):
        if i % 8 == 0:
            update(model, 0.99)
        with_target(model).backward()
        if i % 8 == 0:
            optimizer.step()
        assert checks.after_step() == []


def test_modules_in_a_dict_with_other_names_are_checked():
    model = SimSiam()
    model = nn.ModuleDict({"body": nn.Sequential(*list(model.children())[:2]), "q": nn.Tanh()})
    branches = parts.by_name(model, "q", "body")._replace(predictor=True)

    def step(model, stop=torch.Tensor.detach):
        z1, z2 = (model["body"](x) for x in views())
        return distance(model["q"](z1), stop(z2))

    assert checked(model, step, branches=branches) == []
    mistaken = lambda model: step(model, stop=lambda z: z)  # noqa: E731
    assert checked(model, mistaken, branches=branches) == [(1, "stop-gradient", "body")]


def test_an_in_place_layer_at_the_start_of_the_predictor_is_no_mistake():
    model = SimSiam()
    model.prediction_head.insert(0, nn.ReLU(inplace=True))
    assert checked(model, simsiam) == []


def test_lazy_layers_are_no_obstacle():
    model = byol(BYOL())
    model.projection_head, model.projection_head_momentum = nn.LazyLinear(8), nn.LazyLinear(8)
    assert checked(model, with_target, update=lambda: update(model, 0.99)) == []


class Odd(nn.Module):
    """A part with an unusual output."""

    def __init__(self, inner, wrap):
        super().__init__()
        self.inner = inner
        self.wrap = wrap

    def forward(self, x):
        return self.wrap(self.inner(x))


@pytest.mark.parametrize(
    ("wrap", "has_output"),
    [(lambda y: {"y": y}, True), (lambda y: (None, y), True), (lambda y: (), False), (str, False)],
)
def test_odd_outputs_do_not_stop_the_loop(wrap, has_output):
    """The loss here is on the projections alone, so the predictor is not trained."""
    model = SimSiam()
    model.prediction_head = Odd(model.prediction_head, wrap)

    def step(model):
        z = project(model, images())
        model.prediction_head(z)
        return z.square().mean()

    expected = ["stop-gradient", "predictor"] if has_output else ["stop-gradient"]
    assert [check for _, check, _ in checked(model, step)] == expected


@pytest.mark.parametrize("step", LOOPS)
def test_results_are_those_without_checks(step):
    def weights(steps):
        model = SimSiam()
        torch.manual_seed(1)
        checks = LoopChecks(model, parts.find(model))
        if not steps:
            checks.detach()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(4):
            optimizer.zero_grad()
            step(model).backward()
            optimizer.step()
            if steps:
                checks.after_step()
        return nn.utils.parameters_to_vector(model.parameters())

    assert torch.equal(weights(True), weights(False))


def test_all_hooks_are_removed_after_the_last_step():
    model = byol(BYOL())
    checks = LoopChecks(model, parts.find(model))
    for _ in range(STEPS):
        assert checks.recording
        assert any(part._forward_hooks for part in model.modules())
        checks.after_step()
    for submodule in model.modules():
        assert not submodule._forward_hooks
        assert not submodule._forward_pre_hooks
    assert not checks.recording
    assert checks.after_step() == []
