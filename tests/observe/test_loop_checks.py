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


def checked(model, step, lr=0.1, branches=None, views=None, with_checks=True):
    """Train and return the number of each step with findings, the checks and the parts."""
    torch.manual_seed(1)
    checks = LoopChecks(model, branches or parts.find(model), views)
    if not with_checks:
        checks.detach()
    parameters = [x for x in model.parameters() if x.requires_grad]
    optimizer = torch.optim.SGD(parameters, lr=lr)
    found = []
    for i in range(1, STEPS + 1):
        optimizer.zero_grad()
        step(model).backward()
        optimizer.step()
        for finding in checks.after_step() if with_checks else []:
            found.append((i, finding.check, finding.part))
            may_be_intended = finding.check in ("frozen encoder", "frozen target")
            assert finding.is_certain is not may_be_intended
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


def with_parts(model, **parts):
    """Replace parts of a model."""
    for name, part in parts.items():
        setattr(model, name, part)
    return model


@pytest.mark.parametrize("step", LOOPS)
def test_a_missing_stop_gradient_is_found_and_a_healthy_loop_gives_the_same_weights(step):
    def mistaken(model):
        return step(model, stop=lambda z: z)

    assert checked(SimSiam(), mistaken) == [(1, "stop-gradient", "projection_head")]
    weights = []
    for with_checks in (True, False):
        model = SimSiam()
        assert checked(model, step, with_checks=with_checks) == []
        weights.append(nn.utils.parameters_to_vector(model.parameters()))
    assert torch.equal(*weights)


def byol():
    model = BYOL()
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


def learned_target(model):
    update(model, 0.99)
    return with_target(model, no_grad=False)


def two_encoders(bias):
    parts = {"image": nn.Linear(DIM, 8), "text": nn.Linear(DIM, 8, bias)}
    return nn.ModuleDict(parts)


def contrast(model):
    x, y = views()
    return distance(model["image"](x), model["text"](y))


TWO_ENCODERS = {"branches": Branches("image", "text", False)}


def detached_features(model):
    z1, z2 = (model.projection_head(model.backbone(x).detach()) for x in views())
    return distance(model.prediction_head(z1), z2.detach())


def without_head():
    model = SimSiam()
    del model.prediction_head
    return model


def without_predictor(model):
    z1, z2 = (project(model, x) for x in views())
    return distance(z1, z2)


def filtered(model):
    return simsiam(model, lambda z: model.target_head(z.detach()))


def same_views(model):
    x = images()
    z1, z2 = project(model, x), project(model, x)
    return distance(model.prediction_head(z1), z2.detach())


def same_halves(model):
    x = images()
    z = project(model, torch.cat([x, x]))
    return distance(model.prediction_head(z), z.detach().roll(10, 0))


def once_without_gradient(model):
    x = images()
    with torch.no_grad():
        z = project(model, x)
    return distance(model.prediction_head(project(model, x)), z)


def one_image(model):
    z1, z2 = (project(model, x[:1]) for x in views())
    return distance(model.prediction_head(z1), z2.detach())


class ZeroResidual(nn.Linear):
    def __init__(self):
        super().__init__(8, 8)
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, x):
        return x + super().forward(x)


def zero_last_layer():
    model = SimSiam()
    nn.init.zeros_(model.prediction_head[-1].weight)
    nn.init.zeros_(model.prediction_head[-1].bias)
    return model


def frozen(name):
    model = SimSiam()
    getattr(model, name).requires_grad_(False)
    return model


def predicted_by(predictor):
    return with_parts(SimSiam(), prediction_head=predictor)


def noisy(units, place):
    """Return a model that adds numbers of this many units in the last place of the largest."""

    def add_noise(y):
        eps = torch.finfo(y.dtype).eps
        return y + units * eps * y.abs().max() * torch.rand_like(y)

    model = SimSiam()
    if place == "backbone":
        return with_parts(model, backbone=Odd(model.backbone, add_noise))
    constant = nn.Sequential(nn.Linear(8, 8), nn.Threshold(1e9, 1.0))
    return with_parts(model, prediction_head=Odd(constant, add_noise))


class Odd(nn.Module):
    """A part with an unusual output."""

    def __init__(self, inner, wrap):
        super().__init__()
        self.inner = inner
        self.wrap = wrap

    def forward(self, x):
        return self.wrap(self.inner(x))


def in_place():
    model = SimSiam()
    model.backbone.pop(1)
    head = nn.Sequential(nn.ReLU(inplace=True), model.projection_head)
    return with_parts(model, projection_head=head)


def extended(part, place, layer):
    model = SimSiam()
    getattr(model, part).insert(place, layer)
    return model


def lazy():
    return with_parts(
        byol(), projection_head=nn.LazyLinear(8), projection_head_momentum=nn.LazyLinear(8)
    )


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


def compiled(model):
    return torch.compile(model, backend="aot_eager")


def parallel(model):
    return nn.DataParallel(nn.DataParallel(model))


HEALTHY = {
    "compiled": (SimSiam, unusual(compiled), {}),
    "DataParallel": (SimSiam, unusual(parallel), {}),
    "checkpoint": (SimSiam, unusual(checkpointed(False)), {}),
    "reentrant checkpoint": (SimSiam, unusual(checkpointed(True)), {}),
    "evaluation": (SimSiam, unusual(nn.Module.eval), {}),
    "momentum 0.5": (byol, momentum_step(0.5, before=True), {}),
    "momentum 0.9999": (byol, momentum_step(0.9999, before=True), {}),
    "an update after the forward": (byol, momentum_step(0.99, before=False), {}),
    "a copy at intervals": (byol, momentum_step(0, True, period=4), {}),
    "a copy, and nothing is trained": (byol, momentum_step(0, before=True), {"lr": 0}),
    "a target of momentum 1, and nothing is trained": (byol, momentum_step(1, True), {"lr": 0}),
    "a frozen encoder, and nothing is trained": (lambda: frozen("backbone"), chunked, {"lr": 0}),
    "two different encoders": (lambda: two_encoders(bias=False), contrast, TWO_ENCODERS),
    "neither predictor nor target": (without_head, without_predictor, {}),
    "a residual predictor that starts as the identity": (
        lambda: predicted_by(ZeroResidual()),
        simsiam,
        {},
    ),
    "a filter on the target": (
        lambda: with_parts(predicted_by(nn.Identity()), target_head=nn.Tanh()),
        filtered,
        {},
    ),
    "a predictor without weights": (lambda: predicted_by(nn.Tanh()), simsiam, {}),
    "a single view in each step": (SimSiam, same_views, {"views": 1}),
    "a single view in each batch": (SimSiam, simsiam, {"views": 1}),
    "dropout inside the network": (
        lambda: extended("backbone", 2, nn.Dropout(0.1)),
        same_views,
        {},
    ),
    "noise inside the network": (lambda: noisy(1e5, "backbone"), same_halves, {}),
    "a view with and without gradient": (SimSiam, once_without_gradient, {}),
    "a last layer that starts with zeros": (zero_last_layer, simsiam, {}),
    "a batch of one image": (SimSiam, one_image, {}),
    "outputs that hardly differ": (lambda: noisy(100, "predictor"), simsiam, {}),
    "a predictor that starts in place": (
        lambda: extended("prediction_head", 0, nn.ReLU(inplace=True)),
        simsiam,
        {},
    ),
    "lazy layers": (lazy, momentum_step(0.99, before=False), {}),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("make", "step", "options"), HEALTHY.values(), ids=HEALTHY)
def test_a_healthy_loop_is_no_mistake(make, step, options):
    assert checked(make(), step, **options) == []


TARGET = ["backbone_momentum", "projection_head_momentum"]
PREDICTOR = ["prediction_head"]
MISTAKES = {
    "a target that never moves": (byol, momentum_step(1, True), "frozen target", TARGET),
    "a target that is a copy": (byol, momentum_step(0, True), "copied target", TARGET),
    "a frozen encoder": (lambda: frozen("backbone"), simsiam, "frozen encoder", ["backbone"]),
    "an encoder without gradient": (SimSiam, detached_features, "frozen encoder", ["backbone"]),
    "gradient to a momentum target": (byol, learned_target, "stop-gradient", TARGET[1:]),
    "gradient to an equal encoder": (
        lambda: two_encoders(bias=True),
        contrast,
        "stop-gradient",
        ["text"],
    ),
    "an identity as predictor": (
        lambda: predicted_by(nn.Identity()),
        simsiam,
        "asymmetry",
        PREDICTOR,
    ),
    "a frozen predictor": (lambda: frozen("prediction_head"), simsiam, "predictor", PREDICTOR),
    "equal views": (SimSiam, same_views, "views", ["backbone"]),
    "equal views, in place": (in_place, same_views, "views", ["backbone"]),
    "equal halves": (SimSiam, same_halves, "views in a batch", ["backbone"]),
    "equal halves within rounding": (
        lambda: noisy(100, "backbone"),
        same_halves,
        "views in a batch",
        ["backbone"],
    ),
    "equal outputs within rounding": (
        lambda: noisy(8, "predictor"),
        simsiam,
        "constant",
        PREDICTOR,
    ),
}


@pytest.mark.parametrize(("make", "step", "check", "names"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_found(make, step, check, names):
    options = TWO_ENCODERS if step is contrast else {}
    when = 1 if check == "stop-gradient" else STEPS
    expected = {(when, check, name) for name in names}
    assert set(checked(make(), step, **options)) == expected


def test_a_loop_may_accumulate_gradients_and_start_with_a_rate_of_zero():
    model = byol()
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
    model = byol()
    checks = LoopChecks(model, parts.find(model))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for i in range(1, STEPS + 1):
        if i % 8 == 0:
            update(model, 0.99)
        with_target(model).backward()
        if i % 8 == 0:
            optimizer.step()
        assert checks.after_step() == []


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


def test_all_hooks_are_removed_after_the_last_step():
    model = byol()
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
