"""The role of asymmetric designs, from real checkpoints: numbers, cache, refusals, picture."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from pathlib import Path

import hydra.utils
import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from support.small_runs import configure

from rdm_solo import methods, runs, train
from rdm_solo.data import loader
from rdm_solo.evaluate import finished_run, role_curves, roles
from rdm_solo.methods import solo_learn
from rdm_solo.runs import roles_file

ROWS = 96  # three batches of two views of 16 images: one epoch has four
SMALL = ["dataset=synthetic", "dataset.num_train=64", "dataset.num_val=16", "batch_size=16"]
SMALL += ["dataset.image_size=8", "backbone.name=small_resnet", "+backbone.kwargs.width=8"]
SMALL += ["backbone.kwargs.zero_init_residual=null", "max_epochs=1", "knn.every_n_epochs=0"]
SMALL += ["method.kwargs.proj_hidden_dim=32", "method.kwargs.proj_output_dim=12"]
SMALL += ["scheduler.warmup_epochs=0", "trainer.accelerator=cpu"]
RUNS = {
    "simsiam": ["method.kwargs.pred_hidden_dim=6"],
    "byol": ["filter=target_pow", "method.kwargs.pred_hidden_dim=6"],
    "swav": ["method.kwargs.num_prototypes=24", "method.kwargs.queue_size=32"],
    "dino": ["method.kwargs.num_prototypes=24"],
}
RUNS["swav"] += ["method.kwargs.epoch_queue_starts=0"]
RUNS["dino"] += ["method.kwargs.use_bn_in_head=true", "method.center_momentum=0.5"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """One epoch of each method."""
    root = tmp_path_factory.mktemp("runs")
    for name, options in RUNS.items():
        (root / name).mkdir()
        cfg = configure(f"method={name}", *SMALL, *options)
        train.run(cfg, root / name)
    return root


@pytest.fixture(scope="module")
def measured(trained):
    return {name: roles.measure(trained / name, rows=ROWS) for name in RUNS}


def views(rows: int = ROWS) -> list[list[torch.Tensor]]:
    """The batches that a run of seed 0 saw in its first epoch, from the loader of training."""
    cfg = configure("method=simsiam", *SMALL)
    data, pipelines = (hydra.utils.instantiate(cfg.dataset[part]) for part in ("source", "views"))
    batches = loader(data, "train", 16, views=pipelines, seed=0)
    return [crops for _, crops, _ in batches][: rows // 32]


def model_of(folder: Path):
    """The run's model, put together by hand."""
    cfg = OmegaConf.create(runs.load(folder).config)
    OmegaConf.set_struct(cfg, False)
    cfg.dataset.update(num_classes=10, num_large_crops=2, num_small_crops=0)
    model = methods.build(cfg)
    saved = torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)
    queue = saved["state_dict"].pop("queue", None)
    model.load_state_dict(saved["state_dict"])
    return model.train().requires_grad_(False), queue


def spectrum(x: torch.Tensor) -> np.ndarray:
    """Eigenvalues of E[x x^T], from numpy's singular values."""
    return np.linalg.svd(x.double().numpy(), compute_uv=False) ** 2 / len(x)


def erank(lam: np.ndarray) -> float:
    q = lam[lam > 0] / lam.sum()
    return float(np.exp(-(q * np.log(q)).sum()))


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


def by_name(found: roles_file.Roles) -> dict[str, roles_file.Series]:
    return {series.name: series for series in found.series}


class TestSinkhorn:
    @pytest.mark.parametrize("iterations", [0, 1, 2, 3])
    def test_is_the_plain_iteration(self, iterations):
        logits = torch.randn(40, 12, generator=torch.Generator().manual_seed(0)).clamp(-1, 1)
        q = role_curves.sinkhorn(logits, 0.05, iterations)
        # float64 both ways; 1e-15 measured.
        torch.testing.assert_close(q, plain_sinkhorn(logits, 0.05, iterations), rtol=0, atol=1e-13)
        if iterations == 0:
            torch.testing.assert_close(q, (logits.double() / 0.05).softmax(1))
        elif iterations == 3:
            assert (q.sum(0) - 40 / 12).abs().max() < 2, "prototypes are used about equally"

    @pytest.mark.parametrize("iterations", [1, 2, 3])
    def test_is_solo_learns(self, iterations):
        logits = torch.randn(40, 12, generator=torch.Generator().manual_seed(1)).clamp(-1, 1)
        swav = type("Swav", (), {"sk_iters": iterations, "sk_epsilon": 0.05})
        theirs = solo_learn.complete(swav).sk(logits).double()
        # float32; 5e-7 measured.
        torch.testing.assert_close(
            role_curves.sinkhorn(logits, 0.05, iterations), theirs, rtol=0, atol=5e-6
        )

    def test_does_not_overflow(self):
        assert (
            role_curves.sinkhorn(torch.tensor([[900.0, 0.0], [0.0, 900.0]]), 0.05, 3)
            .isfinite()
            .all()
        )


class TestNumbers:
    @pytest.mark.parametrize("name", ["simsiam", "byol"])
    def test_ideal_predictor(self, trained, measured, name):
        model, _ = model_of(trained / name)
        p, z, z_plus = [], [], []
        for a, b in views():
            if name == "simsiam":
                z_a, z_b = (model.projector(model.backbone(x)) for x in (a, b))
                p += [model.predictor(z_a), model.predictor(z_b)]
            else:
                z_a, z_b = (
                    model.target_head(model.momentum_projector[:-1](model.momentum_backbone(x)))
                    for x in (a, b)
                )
                p += [model.projector(model.backbone(x)) for x in (a, b)]
            z, z_plus = [*z, z_a, z_b], [*z_plus, z_b, z_a]
        p, z, z_plus = (unit(torch.cat(x)) for x in (p, z, z_plus))
        C_z, C_plus = (x.numpy().T @ y.numpy() / len(z) for x, y in ((z, z), (z, z_plus)))
        assert np.allclose(C_plus, C_plus.T, atol=1e-12), "both orders of a pair are in"
        lam_z, lam_plus = spectrum(z), np.linalg.eigvalsh(C_plus)[::-1]
        # W* = C_+ C_z^-1 (Theorem 2) in the eigenbasis of C_z.
        u = np.linalg.eigh(C_z)[1]
        W = C_plus @ np.linalg.pinv(C_z, rcond=1e-10)
        along = np.einsum("ji,jk,ki->i", u, W, u)[::-1]

        found, series = measured[name], by_name(measured[name])
        m = len(series["omega"].lam)
        assert lam_z[:m].sum() > 0.9999 * lam_z.sum() >= lam_z[: m - 1].sum()
        # float32 outputs of two passes: 2e-6 measured.
        close = {"rtol": 1e-4, "atol": 1e-5}
        np.testing.assert_allclose(series["g"].lam, lam_z[:m], **close)
        np.testing.assert_allclose(
            series["omega"].value, np.maximum(lam_plus / lam_z, 0)[:m], **close
        )
        np.testing.assert_allclose(
            series["omega, directional"].value, np.maximum(along, 0)[:m], rtol=1e-3, atol=1e-4
        )
        assert (series["omega"].value <= 1 + 1e-9).all(), "Theorem 2"
        lam_p = spectrum(p)
        np.testing.assert_allclose(series["g"].value, np.sqrt(lam_p / lam_z)[:m], atol=1e-4)
        assert found.erank == pytest.approx(erank(lam_z), rel=1e-4)
        assert series["g"].erank == pytest.approx(erank(lam_p), rel=1e-4)
        ideal = np.maximum(lam_plus / lam_z, 0) ** 2 * lam_z
        assert series["omega"].erank == pytest.approx(erank(ideal[:m]), rel=2e-3)
        assert (found.branch, found.rows, found.batch, found.epoch) == ("online", ROWS, 16, 1)

    def test_directions_that_a_bottleneck_leaves_empty_are_zero(self, measured):
        """Six hidden units and a bias: rank 7; rounding beyond it is no filter."""
        g = by_name(measured["simsiam"])["g"].value
        assert len(g) > 7
        assert (g[:7] > 1e-3).all()
        assert not g[7:].any()

    def test_swav(self, trained, measured):
        model, queue = model_of(trained / "swav")
        assert queue.shape == (2, 32, 12)
        logits, targets = [], {n: [] for n in range(4)}
        for crops in views():
            for view, x in enumerate(crops):
                z = model.projector(model.backbone(x))
                logits.append(model.prototypes(z / z.norm(dim=1, keepdim=True)))
                both = torch.cat([logits[-1], model.prototypes(queue[view])])
                for n, parts in targets.items():
                    parts.append(plain_sinkhorn(both, 0.05, n)[:16])
        lam_p = spectrum((torch.cat(logits).double() / 0.1).softmax(1))
        found, series = measured["swav"], by_name(measured["swav"])
        assert found.erank == pytest.approx(erank(lam_p), rel=1e-4)
        assert found.own == "3 iterations, ε = 0.05"
        assert len(series) == 4 + 3, "at the online temperature 0 iterations are the online branch"
        for n, parts in targets.items():
            one = series[f"{n} iteration{'' if n == 1 else 's'}, ε = 0.05"]
            m = len(one.lam)
            assert m >= 5
            lam_z = spectrum(torch.cat(parts))
            np.testing.assert_allclose(one.lam, lam_p[:m], rtol=1e-3)
            np.testing.assert_allclose(one.value, np.sqrt(lam_z / lam_p)[:m], rtol=2e-3)
            assert one.erank == pytest.approx(erank(lam_z), rel=1e-4)

    def test_dino(self, trained, measured):
        model, _ = model_of(trained / "dino")
        crops = [x for batch in views() for x in batch]
        student = torch.cat([model.head(model.backbone(x)) for x in crops]).double()
        teacher = torch.cat([model.momentum_head(model.momentum_backbone(x)) for x in crops])
        centre = model.dino_loss_func.center.double()
        assert centre.abs().max() > 1e-3
        lam_p = spectrum((student / 0.1).softmax(1))
        found, series = measured["dino"], by_name(measured["dino"])
        assert found.erank == pytest.approx(erank(lam_p), rel=1e-4)
        assert found.own == "centred, t = 0.07"
        assert len(series) == 8
        for t in (0.04, 0.07, 0.1, 0.2):
            for name, shift in (("not centred", 0), ("centred", centre)):
                one = series[f"{name}, t = {t}"]
                lam_z = spectrum(((teacher.double() - shift) / t).softmax(1))
                m = len(one.lam)
                assert m >= 5
                np.testing.assert_allclose(one.value, np.sqrt(lam_z / lam_p)[:m], rtol=2e-3)
                assert one.erank == pytest.approx(erank(lam_z), rel=1e-4)

    def test_monotonicity_and_slope_of_a_power(self):
        lam = torch.logspace(0, -3, 20, dtype=torch.float64)
        power = role_curves.curve("h", "", lam, lam**-0.25, lam.sqrt())
        assert power.slope == pytest.approx(-0.25)
        assert power.monotonicity == pytest.approx(-1)

    def test_wide_outputs_take_the_other_gram_matrix(self):
        x = torch.randn(10, 30, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
        np.testing.assert_allclose(role_curves.eigenvalues(x), spectrum(x), rtol=1e-10)
        np.testing.assert_allclose(
            role_curves.eigenvalues(x.T), spectrum(x.T.contiguous()), rtol=1e-10
        )


def alike(a: roles_file.Roles, b: roles_file.Roles) -> None:
    for field in dataclasses.fields(roles_file.Roles):
        if field.name != "series":
            assert getattr(a, field.name) == getattr(b, field.name), field.name
    assert len(a.series) == len(b.series)
    for one, other in zip(a.series, b.series):
        assert np.array_equal(one.lam, other.lam)
        assert np.array_equal(one.value, other.value)
        assert (one.name, one.group, one.erank) == (other.name, other.group, other.erank)
        assert (one.monotonicity, one.slope) == (other.monotonicity, other.slope)


class TestCache:
    @pytest.mark.parametrize("name", list(RUNS))
    def test_a_second_call_reads_what_the_first_measured(
        self, trained, measured, name, monkeypatch
    ):
        checkpoint = (trained / name / "checkpoints" / "last.ckpt").read_bytes()
        shelf = trained / name / "roles.json"
        shelf.unlink()
        torch.manual_seed(99)
        before = torch.get_rng_state()
        alike(roles.measure(trained / name, rows=ROWS), measured[name])
        assert torch.equal(before, torch.get_rng_state()), (
            "no random number of the caller's is used"
        )
        monkeypatch.setattr(finished_run, "load", None)
        alike(roles.measure(trained / name, rows=ROWS), measured[name])
        assert (trained / name / "checkpoints" / "last.ckpt").read_bytes() == checkpoint

    def test_another_checkpoint_or_size_is_measured_anew(self, trained, tmp_path):
        folder = Path(shutil.copytree(trained / "simsiam", tmp_path / "run"))
        roles.measure(folder, rows=ROWS)
        before = roles.measure(folder, rows=64)
        assert before.rows == 64
        checkpoint = folder / "checkpoints" / "last.ckpt"
        saved = torch.load(checkpoint, weights_only=True)
        weight = "predictor.3.weight"
        saved["state_dict"][weight] = saved["state_dict"][weight].flip(1)
        torch.save(saved, checkpoint)
        os.utime(checkpoint, (1, 1))
        changed = roles.measure(folder, rows=64)
        assert not np.array_equal(by_name(changed)["g"].value, by_name(before)["g"].value)
        (folder / "roles.json").write_bytes(b"torn")
        alike(roles.measure(folder, rows=64), changed)

    def test_typed_options_change_what_is_measured(self, trained, measured, tmp_path, capsys):
        folder = Path(shutil.copytree(trained / "simsiam", tmp_path / "run"))
        weaker = "dataset.views.pipelines.0.jitter=0.1"
        command = ["--rows", str(ROWS), "--out", str(tmp_path / "a.png"), str(folder)]
        roles.main([*command, weaker])
        capsys.readouterr()
        shelf = json.loads((folder / "roles.json").read_text())
        assert shelf["key"]["typed"] == {"dataset.views.pipelines.0.jitter": 0.1}
        assert shelf["erank"] != measured["simsiam"].erank
        assert roles.measure(folder, rows=ROWS).erank == measured["simsiam"].erank
        with pytest.raises(SystemExit):
            roles.main([*command, "dataset.flips=0.5"])
        assert "no option 'dataset.flips' of this run" in capsys.readouterr().out

    def test_more_rows_than_an_epoch_has_come_from_the_next(self, trained):
        again = finished_run.load(runs.load(trained / "dino"))
        batches = list(again.batches(200))
        assert len(batches) == 7, "four an epoch"
        assert all(torch.equal(a, b) for a, b in zip(batches[0], views()[0]))
        assert not any(torch.equal(batches[0][0], crops[0]) for crops in batches[1:])


class TestRefusals:
    def test_a_symmetric_method(self, trained, tmp_path):
        folder = Path(shutil.copytree(trained / "simsiam", tmp_path / "run"))
        change(folder, lambda config: config["method"].update(name="symsimsiam"))
        with pytest.raises(ValueError, match=r"no asymmetric design: SymSimSiam is none of"):
            roles.measure(folder)

    def test_no_checkpoint(self, trained, tmp_path):
        ignored = shutil.ignore_patterns("checkpoints")
        folder = Path(shutil.copytree(trained / "dino", tmp_path / "run", ignore=ignored))
        with pytest.raises(ValueError, match=r"has no checkpoints/last.ckpt: let the run finish"):
            roles.measure(folder)

    def test_a_checkpoint_that_cannot_be_read(self, trained, tmp_path):
        folder = Path(shutil.copytree(trained / "dino", tmp_path / "run"))
        (folder / "checkpoints" / "last.ckpt").write_bytes(b"torn")
        with pytest.raises(ValueError, match=r"last.ckpt cannot be read as a checkpoint"):
            roles.measure(folder)

    def test_a_checkpoint_of_another_model(self, trained, tmp_path):
        folder = Path(shutil.copytree(trained / "dino", tmp_path / "run"))
        shutil.copy(trained / "swav" / "checkpoints" / "last.ckpt", folder / "checkpoints")
        with pytest.raises(ValueError, match=r"does not fit the model of the run's config: \w+"):
            roles.measure(folder)

    def test_data_that_are_not_there(self, trained, tmp_path):
        folder = Path(shutil.copytree(trained / "dino", tmp_path / "run"))
        source = {"_target_": "rdm_solo.data.cifar10", "root": str(tmp_path / "nowhere")}
        change(folder, lambda config: config["dataset"].update(name="cifar10", source=source))
        with pytest.raises(ValueError, match=r"run: dataset.root=.*"):
            roles.measure(folder)

    @pytest.mark.parametrize("rows", [0, 1.5, True])
    def test_rows(self, trained, rows):
        with pytest.raises(ValueError, match="rows must be a whole number of at least 2, got"):
            roles.measure(trained / "dino", rows=rows)

    def test_a_diverged_run(self, trained, tmp_path):
        folder = Path(shutil.copytree(trained / "swav", tmp_path / "run"))
        checkpoint = folder / "checkpoints" / "last.ckpt"
        saved = torch.load(checkpoint, weights_only=True)
        saved["state_dict"]["projector.0.weight"].fill_(3e38)  # finite, but not behind it
        torch.save(saved, checkpoint)
        with pytest.raises(ValueError, match="NaN or infinite: its run has diverged"):
            roles.measure(folder, rows=ROWS)


def change(folder: Path, how) -> None:
    """Another config in ``summary.json``."""
    path = folder / "summary.json"
    summary = json.loads(path.read_text())
    how(summary["config"])
    path.write_text(json.dumps(summary))


class TestPicture:
    def test_a_panel_for_each_label(self, measured, tmp_path):
        pair = [measured["swav"], dataclasses.replace(measured["swav"], seed=1)]
        figure = roles.draw([measured["simsiam"], measured["byol"], *pair, measured["dino"]])
        assert len(figure.axes) == 4
        names = [[line.get_label() for line in axes.lines] for axes in figure.axes]
        assert sum(name.endswith("(this run)") for name in names[2]) == 1
        assert len(figure.axes[2].lines) == 2 * 7 + 1, "both seeds and the level of no filter"
        renderer = figure.canvas.get_renderer()
        for axes in figure.axes:
            key = axes.get_legend().get_window_extent(renderer)
            assert not key.overlaps(axes.get_window_extent(renderer)), "the key hides no data"
            below = axes.xaxis.label.get_window_extent(renderer)
            assert not key.overlaps(below)
            assert axes.get_xscale() == axes.get_yscale() == "log"
        styles = [
            (line.get_color(), str(line.get_linestyle()), line.get_marker())
            for line in figure.axes[3].lines
            if "t = " in line.get_label()
        ]
        assert len(styles) == len(set(styles)) == 8
        figure.savefig(tmp_path / "roles.png")


def test_the_command(trained, measured, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(roles, "measure", lambda folder, rows, device, typed: measured[folder.name])
    roles.main(
        [str(trained / "dino"), str(trained / "swav"), "--out", str(tmp_path / "a" / "b.png")]
    )
    printed = capsys.readouterr().out
    assert "centred, t = 0.07" in printed
    assert "<- the run's own" in printed
    assert (tmp_path / "a" / "b.png").stat().st_size > 10_000
    with pytest.raises(SystemExit):
        roles.main([str(tmp_path / "nowhere")])
    assert "is not a folder" in capsys.readouterr().err
    monkeypatch.undo()
    with pytest.raises(SystemExit):
        roles.main([str(trained / "dino"), "--rows", "1"])
    assert "none of these runs has curves to draw" in capsys.readouterr().err
