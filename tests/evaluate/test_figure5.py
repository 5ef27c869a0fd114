"""Figure 5 from real checkpoints, against float64 numbers that are put together by hand."""

import shutil
from pathlib import Path

import hydra.utils
import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from support import small_runs
from support.small_runs import SMALL, configure

from rdm_solo import methods, runs
from rdm_solo.data import loader
from rdm_solo.evaluate import figure5, finished_run
from rdm_solo.methods import solo_learn

ROWS = 96  # three batches of two views of 16 images; an epoch has four
TINY = [*SMALL, "max_epochs=1", "scheduler.warmup_epochs=0", "method.kwargs.proj_output_dim=12"]
TINY = [option for option in TINY if not option.startswith("method.kwargs.pred")]
QUEUE = ["method.kwargs.queue_size=32", "method.kwargs.epoch_queue_starts=0"]
CENTRE = ["method.kwargs.use_bn_in_head=true", "method.center_momentum=0.5"]
RUNS = {
    "simsiam": ["method.kwargs.pred_hidden_dim=6"],
    "byol": ["filter=target_pow", "method.kwargs.pred_hidden_dim=6"],
    "swav": ["method.kwargs.num_prototypes=24", *QUEUE],
    "dino": ["method.kwargs.num_prototypes=24", *CENTRE],
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """One epoch of each method."""
    root = tmp_path_factory.mktemp("runs")
    for name, options in RUNS.items():
        small_runs.run(root / name, f"method={name}", *TINY, *options)
    return root


def measure(folder: Path) -> dict[str, figure5.Curve]:
    return {curve.name: curve for curve in figure5.measure(runs.load(folder), ROWS).curves}


def first_views() -> list[list[torch.Tensor]]:
    """The batches that a run of seed 0 saw first, from the loader of training."""
    cfg = configure("method=simsiam", *TINY)
    data = hydra.utils.instantiate(cfg.dataset.source)
    views = hydra.utils.instantiate(cfg.dataset.views)
    batches = [crops for _, crops, _ in loader(data, "train", 16, views=views, seed=0)]
    return batches[: ROWS // 32]


def model_of(folder: Path):
    """The run's model and SwAV's queue, put together by hand."""
    cfg = OmegaConf.create(runs.load(folder).config)
    cfg.dataset.update(num_classes=10, num_large_crops=2, num_small_crops=0)
    model = methods.build(cfg)
    saved = torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)
    queue = saved["state_dict"].pop("queue", None)
    model.load_state_dict(saved["state_dict"])
    return model.train().requires_grad_(False), queue


def spectrum(x: torch.Tensor | np.ndarray) -> np.ndarray:
    """Eigenvalues of E[x x^T], from numpy's singular values."""
    sigma = np.linalg.svd(np.asarray(x, np.float64), compute_uv=False)
    return sigma**2 / len(x)


def unit(x: torch.Tensor) -> torch.Tensor:
    x = x.double()
    return x / x.square().sum(1, keepdim=True).sqrt()


def plain_sinkhorn(logits: torch.Tensor, epsilon: float, iterations: int) -> torch.Tensor:
    """The iterations as they are written down, without logarithms."""
    q = np.exp(logits.double().numpy() / epsilon)
    for _ in range(iterations):
        q = q / q.sum(axis=0)
        q = q / q.sum(axis=1)[:, None]
    return torch.from_numpy(q / q.sum(axis=1)[:, None])


@pytest.mark.parametrize("iterations", [0, 1, 2, 3])
def test_sinkhorn_is_the_plain_iteration_and_solo_learns(iterations):
    logits = torch.randn(40, 12, generator=torch.Generator().manual_seed(0)).clamp(-1, 1)
    q = figure5.sinkhorn(logits, 0.05, iterations)
    # float64 both ways; 1e-15 measured.
    torch.testing.assert_close(q, plain_sinkhorn(logits, 0.05, iterations), rtol=0, atol=1e-13)
    if iterations:
        swav = type("Swav", (), {"sk_iters": iterations, "sk_epsilon": 0.05})
        expected = solo_learn.add_sinkhorn(swav).sk(logits).double()
        torch.testing.assert_close(q, expected, rtol=0, atol=5e-6)  # float32; 5e-7 measured
    assert figure5.sinkhorn(900 * torch.eye(2), 0.05, iterations).isfinite().all()


def predictor_outputs(model, name: str) -> tuple[np.ndarray, ...]:
    """Return unit rows of the online outputs, the targets and the positives."""
    online, target, positive = [], [], []
    for crops in first_views():
        if name == "simsiam":
            targets = [model.projector(model.backbone(x)) for x in crops]
            online += [model.predictor(z) for z in targets]
        else:
            target_projector = model.momentum_projector[:-1]
            projections = [target_projector(model.momentum_backbone(x)) for x in crops]
            targets = [model.target_head(z) for z in projections]
            online += [model.projector(model.backbone(x)) for x in crops]
        target += targets
        positive += reversed(targets)
    return tuple(unit(torch.cat(parts)).numpy() for parts in (online, target, positive))


@pytest.mark.parametrize("name", ["simsiam", "byol"])
def test_predictor(trained, name):
    model, _ = model_of(trained / name)
    p, z, z_plus = predictor_outputs(model, name)
    lam_p, lam_z = spectrum(p), spectrum(z)
    C_z = z.T @ z / len(z)
    C_plus = z.T @ z_plus / len(z)
    lam_plus = np.linalg.eigvalsh(C_plus)[::-1]
    # W* = C_+ C_z^-1 (Theorem 2) in the eigenbasis of C_z.
    u = np.linalg.eigh(C_z)[1]
    W = C_plus @ np.linalg.pinv(C_z, rcond=1e-10)
    along = np.diag(u.T @ W @ u)[::-1]

    curves = measure(trained / name)
    g = curves["g"]
    omega = curves["omega"]
    directional = curves["omega, directional"]
    m = len(omega.lam)
    assert lam_z[:m].sum() > 0.9999 * lam_z.sum() >= lam_z[: m - 1].sum()
    # float32 outputs of two passes: 2e-6 measured.
    close = {"rtol": 1e-4, "atol": 1e-5}
    np.testing.assert_allclose(g.lam, lam_z[:m], **close)
    np.testing.assert_allclose(g.value, np.sqrt(lam_p / lam_z)[:m], atol=1e-4)
    np.testing.assert_allclose(omega.value, np.maximum(lam_plus / lam_z, 0)[:m], **close)
    np.testing.assert_allclose(directional.value, np.maximum(along, 0)[:m], rtol=1e-3, atol=1e-4)
    assert omega.value.max() <= 1 + 1e-9, "Theorem 2"
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
    expected = np.sqrt(spectrum(target) / lam_p)
    np.testing.assert_allclose(curve.lam, lam_p[:m], rtol=1e-3)
    np.testing.assert_allclose(curve.value, expected[:m], rtol=2e-3)


def test_swav(trained):
    model, queue = model_of(trained / "swav")
    assert queue.shape == (2, 32, 12)
    logits = []
    batches = []  # of Sinkhorn: a view's logits, then its queue's
    for crops in first_views():
        for view, x in enumerate(crops):
            z = model.projector(model.backbone(x))
            logits.append(model.prototypes(z / z.norm(dim=1, keepdim=True)))
            batches.append(torch.cat([logits[-1], model.prototypes(queue[view])]))
    lam_p = spectrum((torch.cat(logits).double() / 0.1).softmax(1))
    curves = measure(trained / "swav")
    assert trained_curves(curves) == ["3 iterations, ε = 0.05"]
    assert len(curves) == 4 + 3, "at the online temperature 0 iterations are the online branch"
    names = ["0 iterations", "1 iteration", "2 iterations", "3 iterations"]
    for n, name in enumerate(names):
        target = torch.cat([plain_sinkhorn(batch, 0.05, n)[:16] for batch in batches])
        assert_target_filter(curves[f"{name}, ε = 0.05"], lam_p, target)


def test_dino(trained):
    model, _ = model_of(trained / "dino")
    crops = [x for batch in first_views() for x in batch]
    student = torch.cat([model.head(model.backbone(x)) for x in crops]).double()
    teacher = torch.cat([model.momentum_head(model.momentum_backbone(x)) for x in crops]).double()
    centre = model.dino_loss_func.center.double()
    assert centre.abs().max() > 1e-3
    lam_p = spectrum((student / 0.1).softmax(1))
    curves = measure(trained / "dino")
    assert trained_curves(curves) == ["t = 0.07, centred"]
    assert len(curves) == 8
    for t in (0.04, 0.07, 0.1, 0.2):
        assert_target_filter(curves[f"t = {t}, not centred"], lam_p, (teacher / t).softmax(1))
        centred = (teacher - centre) / t
        assert_target_filter(curves[f"t = {t}, centred"], lam_p, centred.softmax(1))


def test_more_rows_than_an_epoch_has_come_from_the_next(trained):
    torch.manual_seed(99)
    before = torch.get_rng_state()
    batches = list(finished_run.load(runs.load(trained / "dino")).batches(200))
    assert torch.equal(before, torch.get_rng_state())
    assert len(batches) == 7, "four an epoch"
    assert all(torch.equal(a, b) for a, b in zip(batches[0], first_views()[0]))
    assert not any(torch.equal(batches[0][0], crops[0]) for crops in batches[1:])


def test_refusals(trained, tmp_path):
    def copy(name):
        return Path(shutil.copytree(trained / name, tmp_path / name, dirs_exist_ok=True))

    folder = copy("swav")
    saved = torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)
    saved["state_dict"]["projector.0.weight"].fill_(3e38)  # finite, but not behind it
    torch.save(saved, folder / "checkpoints" / "last.ckpt")
    with pytest.raises(ValueError, match="diverged"):
        measure(folder)
    folder = copy("simsiam")
    config = folder / ".hydra" / "config.yaml"
    config.write_text(config.read_text().replace("name: simsiam", "name: symsimsiam"))
    with pytest.raises(ValueError, match="SymSimSiam"):
        measure(folder)
