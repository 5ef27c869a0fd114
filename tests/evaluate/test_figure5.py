"""Figure 5 from real checkpoints, against float64 numbers that are put together by hand."""

import itertools
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from support import report_pages, small_runs
from support.small_methods import with_sinkhorn
from support.small_runs import SMALL, configure

from rdm_solo import methods, runs
from rdm_solo.data import loader
from rdm_solo.evaluate import figure5, finished_run
from rdm_solo.report import figures
from rdm_solo.runs.groups import by_setting
from rdm_solo.train import training_data

ROWS = 96  # three batches of two views of 16 images; an epoch has four
TINY = [
    *(option for option in SMALL if not option.startswith("method.kwargs.pred")),
    "max_epochs=1",
    "scheduler.warmup_epochs=0",
    "method.kwargs.proj_output_dim=12",
]
RUNS = {
    "simsiam": ["method.kwargs.pred_hidden_dim=6"],
    "byol": ["filter=target_pow", "method.kwargs.pred_hidden_dim=6"],
    "swav": [
        "method.kwargs.num_prototypes=24",
        "method.kwargs.queue_size=32",
        "method.kwargs.epoch_queue_starts=0",
    ],
    "dino": [
        "method.kwargs.num_prototypes=24",
        "method.kwargs.use_bn_in_head=true",
        "method.center_momentum=0.5",
    ],
}


pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Train one epoch of each method."""
    root = tmp_path_factory.mktemp("runs")
    for name, options in RUNS.items():
        small_runs.run(root / name, f"method={name}", *TINY, *options)
    return root


def measure(folder: Path) -> dict[str, figure5.Curve]:
    panel = figure5.measure(runs.load(folder), ROWS)
    return {curve.name: curve for curve in panel.curves}


def first_views() -> list[list[torch.Tensor]]:
    """Return the batches that a run of seed 0 saw first, from the loader of training."""
    cfg = configure("method=simsiam", *TINY)
    dataset, views = training_data.make_data(cfg)
    epoch = loader(dataset, "train", 16, views=views, seed=0)
    batches = itertools.islice(epoch, ROWS // 32)
    return [crops for _, crops, _ in batches]


def model_of(folder: Path):
    """Return the run's model and SwAV's queue, put together by hand."""
    cfg = OmegaConf.create(runs.load(folder).config)
    cfg.dataset.update(num_classes=10, num_large_crops=2, num_small_crops=0)
    model = methods.build(cfg)
    state = small_runs.checkpoint(folder)["state_dict"]
    queue = state.pop("queue", None)
    model.load_state_dict(state)
    return model.train().requires_grad_(False), queue


def spectrum(x: torch.Tensor | np.ndarray) -> np.ndarray:
    """Return the eigenvalues of E[x x^T], from numpy's singular values."""
    x = np.asarray(x, np.float64)
    sigma = np.linalg.svd(x, compute_uv=False)
    return sigma**2 / len(x)


def unit_rows(parts: list[torch.Tensor]) -> np.ndarray:
    x = torch.cat(parts).double().numpy()
    norms = np.linalg.norm(x, axis=1, keepdims=True)
    return x / norms


def plain_sinkhorn(logits: torch.Tensor, epsilon: float, iterations: int) -> torch.Tensor:
    """Return the assignment by the iterations as they are written down, without logarithms."""
    q = (logits.double() / epsilon).exp()
    for _ in range(iterations):
        q = q / q.sum(0)
        q = q / q.sum(1, keepdim=True)
    return q / q.sum(1, keepdim=True)


@pytest.mark.parametrize("iterations", [0, 1, 3])
def test_sinkhorn_is_the_plain_iteration_and_solo_learns(iterations):
    rng = torch.Generator().manual_seed(0)
    logits = torch.randn(40, 12, generator=rng).clamp(-1, 1)
    q = figure5.sinkhorn(logits, 0.05, iterations)
    # float64 both ways; 1e-15 measured.
    expected = plain_sinkhorn(logits, 0.05, iterations)
    torch.testing.assert_close(q, expected, rtol=0, atol=1e-13)
    if iterations:
        swav = with_sinkhorn(SimpleNamespace(sk_iters=iterations, sk_epsilon=0.05))
        assignment = swav.sk(logits).double()
        torch.testing.assert_close(q, assignment, rtol=0, atol=5e-6)  # float32; 5e-7 measured
    large = figure5.sinkhorn(900 * torch.eye(2), 0.05, iterations)
    assert large.isfinite().all()


def predictor_outputs(model, name: str) -> list[np.ndarray]:
    """Return unit rows of the online outputs, the targets and the positives."""
    online = []
    target = []
    positive = []
    for crops in first_views():
        for x in crops:
            projection = model.projector(model.backbone(x))
            if name == "simsiam":
                online.append(model.predictor(projection))
                target.append(projection)
            else:
                online.append(projection)
                z = model.momentum_projector[:-1](model.momentum_backbone(x))
                target.append(model.target_head(z))
        first, second = target[-2:]
        positive += [second, first]
    return [unit_rows(parts) for parts in (online, target, positive)]


@pytest.mark.parametrize("name", ["simsiam", "byol"])
def test_predictors_are_compared_with_the_optimal_one_of_theorem_2(trained, name):
    model, _ = model_of(trained / name)
    p, z, z_plus = predictor_outputs(model, name)
    lam_p = spectrum(p)
    lam_z = spectrum(z)
    C_z = z.T @ z / len(z)
    C_plus = z.T @ z_plus / len(z)
    lam_plus = np.linalg.eigvalsh(C_plus)[::-1]
    # W* = C_+ C_z^-1 (Theorem 2) in the eigenbasis of C_z.
    _, u = np.linalg.eigh(C_z)
    W = C_plus @ np.linalg.pinv(C_z, rcond=1e-10)
    along = np.diag(u.T @ W @ u)[::-1]

    curves = measure(trained / name)
    g = curves["g"]
    omega = curves["omega"].value
    m = len(omega)
    assert lam_z[:m].sum() > 0.9999 * lam_z.sum() >= lam_z[: m - 1].sum()
    # float32 outputs of two passes: 2e-6 measured.
    assert g.lam == pytest.approx(lam_z[:m], rel=1e-4, abs=1e-5)
    expected = np.sqrt(lam_p / lam_z)
    assert g.value == pytest.approx(expected[:m], abs=1e-4)
    expected = (lam_plus / lam_z).clip(0)
    assert omega == pytest.approx(expected[:m], rel=1e-4, abs=1e-5)
    directional = curves["omega, directional"].value
    assert directional == pytest.approx(along.clip(0)[:m], rel=1e-3, abs=1e-4)
    assert omega.max() <= 1 + 1e-9, "Theorem 2"
    assert trained_curves(curves) == ["g"]
    if name == "simsiam":  # six hidden units and a bias: rank 7, and rounding is no filter
        assert len(g.value) > 7
        assert g.value[:7].min() > 1e-3
        assert not g.value[7:].any()


def trained_curves(curves: dict[str, figure5.Curve]) -> list[str]:
    return [name for name, curve in curves.items() if curve.trained]


def assert_target_filter(curve: figure5.Curve, lam_p: np.ndarray, target: torch.Tensor) -> None:
    m = len(curve.lam)
    assert m >= 5
    lam_z = spectrum(target)
    h = np.sqrt(lam_z / lam_p)
    assert curve.lam == pytest.approx(lam_p[:m], rel=1e-3)
    assert curve.value == pytest.approx(h[:m], rel=2e-3)


def test_sinkhorn_iterations_are_target_filters_of_swav(trained):
    model, queue = model_of(trained / "swav")
    logits = []
    batches = []  # of Sinkhorn: a view's logits, then its queue's
    for crops in first_views():
        for view, x in enumerate(crops):
            z = model.projector(model.backbone(x))
            unit = z / z.norm(dim=1, keepdim=True)
            logits.append(model.prototypes(unit))
            queued = model.prototypes(queue[view])
            batches.append(torch.cat([logits[-1], queued]))
    online = torch.cat(logits).double() / 0.1
    lam_p = spectrum(online.softmax(1))
    curves = measure(trained / "swav")
    assert trained_curves(curves) == ["3 iterations, ε = 0.05"]
    assert len(curves) == 4 + 3, "at the online temperature 0 iterations are the online branch"
    names = ["0 iterations", "1 iteration", "2 iterations", "3 iterations"]
    for n, name in enumerate(names):
        assignments = [plain_sinkhorn(batch, 0.05, n)[:16] for batch in batches]
        assert_target_filter(curves[f"{name}, ε = 0.05"], lam_p, torch.cat(assignments))


def test_centring_and_temperatures_are_target_filters_of_dino(trained):
    model, _ = model_of(trained / "dino")
    crops = itertools.chain(*first_views())
    student = []
    teacher = []
    for x in crops:
        features = model.backbone(x)
        student.append(model.head(features).double())
        features = model.momentum_backbone(x)
        teacher.append(model.momentum_head(features).double())
    p = (torch.cat(student) / 0.1).softmax(1)
    lam_p = spectrum(p)
    logits = torch.cat(teacher)
    centre = model.dino_loss_func.center.double()
    assert centre.abs().max() > 1e-3
    curves = measure(trained / "dino")
    assert trained_curves(curves) == ["t = 0.07, centred"]
    assert len(curves) == 8
    for t in (0.04, 0.07, 0.1, 0.2):
        z = (logits / t).softmax(1)
        assert_target_filter(curves[f"t = {t}, not centred"], lam_p, z)
        centred = ((logits - centre) / t).softmax(1)
        assert_target_filter(curves[f"t = {t}, centred"], lam_p, centred)


def test_more_rows_than_an_epoch_has_come_from_the_next(trained):
    before = torch.get_rng_state()
    finished = finished_run.load(runs.load(trained / "dino"))
    first, *others = (crops[0] for crops in finished.batches(200))
    assert torch.equal(before, torch.get_rng_state())
    assert len(others) == 6, "an epoch has four batches"
    for crop in others:
        assert not torch.equal(crop, first)


def test_the_report_draws_every_asymmetric_run_that_has_a_checkpoint(trained, tmp_path):
    members = [report_pages.run(None, method="dino", folder=tmp_path)]
    members.append(report_pages.run(None, method="vanilla", folder=trained / "dino"))
    for name in ("simsiam", "swav"):
        members.append(runs.load(trained / name))
    figure = figures.figure5(by_setting(members))
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles == ["SimSiam", "SwAV (online temperature 0.1)"]
    for axes in figure.axes:
        for line in axes.lines:
            assert min(line.get_ydata()) > 0
