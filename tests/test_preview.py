"""The preview of a filter, and Theorem 4 against runs whose course is known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import command
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from rdm_solo import cli, filters, prediction, preview, runs, theory

SIGMA = torch.arange(1, 17, dtype=torch.float64) ** -0.5 * 20
OMEGA = torch.linspace(0.98, 0.8, 16, dtype=torch.float64)


def configure(*argv: str):
    argv = tuple(cli.quote_paths(list(argv), preview.QUOTED))
    cli.check_arguments(list(argv), "preview")
    with initialize_config_dir(str(cli.config_folder()), version_base="1.3"):
        return compose("preview", list(argv))


def write_run(folder: Path, pull: float, epochs: int = 8, name: str = "target_pow") -> Path:
    """A run that goes exactly the way of Theorem 4, with sigma^-0.5 on the target."""
    steps = max(1, round(pull / prediction.STEP))
    lam, spectra = SIGMA.square() / SIGMA.square().sum(), []
    for _ in range(epochs):
        lam_z = lam.sqrt() / lam.sqrt().sum()
        spectra.append((lam, lam_z, OMEGA * lam_z))
        for _ in range(steps):
            lam_z = lam.sqrt() / lam.sqrt().sum()
            lam = theory.updated_eigenvalues(lam, lam_z, OMEGA * lam_z, pull / steps)
            lam = lam.sort(descending=True).values / lam.sum()
    arrays = {
        f"lam_{key}": torch.stack(values).numpy()
        for key, values in zip(("online", "target", "positive"), zip(*spectra))
    }
    arrays["filter_curve"] = np.sqrt(arrays["lam_online"] / arrays["lam_target"])
    folder.mkdir(parents=True)
    np.savez(
        folder / "spectra.npz",
        epoch=np.arange(epochs),
        lam_projection=arrays["lam_online"],
        **arrays,
    )
    chosen = {"name": name}
    if name == "target_pow":
        chosen |= {"branch": "target", "function": "pow"}
    config = {
        "method": {"name": "simsiam"},
        "filter": chosen,
        "p": -0.5 if "function" in chosen else None,
        "dataset": {"name": "digits"},
        "seed": 0,
        "max_epochs": epochs,
        "batch_size": 64,
    }
    (folder / ".hydra").mkdir()
    OmegaConf.save(OmegaConf.create(config), folder / ".hydra" / "config.yaml")
    return folder


@pytest.fixture(scope="module")
def known(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("runs") / "p=-0.5", pull=float(prediction.PULLS[5]))


@pytest.fixture(scope="module")
def foretold(known):
    return preview.predict(runs.load(known))


def seen(branch: str, name, p=None, sigma=SIGMA) -> preview.Preview:
    return preview.look("it", branch, filters.get(name, p), sigma)


@pytest.mark.parametrize(
    ("branch", "name", "p", "own", "online"),
    [
        ("target", "pow", -0.5, "high-pass", "low-pass"),
        ("target", "pow", 0.5, "low-pass", "high-pass"),
        ("online", "pow", 1.0, "low-pass", "low-pass"),
        ("online", "pow", -0.5, "high-pass", "high-pass"),
        ("online", "log1p", None, "low-pass", "low-pass"),
        ("online", "identity", None, "none", "none"),
        ("online", torch.tanh, None, "low-pass", "low-pass"),
    ],
)
def test_kinds_on_both_branches(branch, name, p, own, online):
    found = seen(branch, name, p, SIGMA / 10)
    assert (found.own, found.online) == (own, online)
    wrong = any("points the wrong way" in text for text in found.warnings)
    assert wrong == (online == "high-pass")
    assert (theory.rank_difference(found.lam_p, found.lam_z) < -1e-3) == wrong
    h = found.gain(found.sigma).abs()
    # Up to a constant g itself, or 1 / h.
    curve = found.curve * h if branch == "target" else found.curve / h
    torch.testing.assert_close(curve, curve[0].expand(16), rtol=1e-9, atol=0)


def test_log_is_a_band_filter_across_one_and_says_what_it_depends_on():
    below = seen("online", "log", sigma=SIGMA / 10)  # from 2 to 0.5
    assert below.own == "band-stop"
    assert "negative for 12 of 16 directions" in " ".join(below.warnings)
    above = seen("online", "log")
    assert above.own == "low-pass"
    (text,) = above.warnings
    assert "depends on the global batch size" in text
    near = seen("online", "log", sigma=SIGMA / 4)  # 1.25 to 5: half of that crosses 1
    assert "with a quarter of the batch it is band-stop" in near.warnings[0]
    assert not any("batch" in text for text in seen("target", "pow", -0.7).warnings)


def test_an_exponent_below_minus_one_turns_the_order_round():
    found = seen("target", "pow", -2.0)
    assert "turns the order of the spectrum round" in found.warnings[0]
    assert (found.lam_z.diff() <= 0).all()


def test_what_is_no_filter_is_refused():
    with pytest.raises(ValueError, match="NaN or infinity among them"):
        preview.look("it", "online", lambda sigma: sigma.log().log(), SIGMA / 10)
    with pytest.raises(ValueError, match=r"got \(\) for 16 of them"):
        preview.look("it", "online", torch.sum, SIGMA)
    with pytest.raises(ValueError, match="zero at every singular value"):
        preview.look("it", "online", torch.zeros_like, SIGMA)


@pytest.mark.parametrize(
    ("branch", "name", "p"),
    [("target", "pow", -0.5), ("target", "pow", -2.0), ("online", "log1p", None)],
)
def test_the_relation_is_the_filters_own(branch, name, p):
    found = seen(branch, name, p)
    lam_p = found.lam_p if branch == "online" else found.sigma.square() / SIGMA.square().sum()
    lam_z = preview.relation(found)(lam_p)
    want = found.lam_z if p != -2.0 else lam_p**-1
    # By interpolation on a grid for online filters; up to a constant for target ones.
    torch.testing.assert_close(lam_z / lam_z.sum(), want / want.sum(), rtol=1e-3, atol=0)


def test_paths_climb_fall_or_stay():
    ones = torch.ones(16, dtype=torch.float64)

    def path(branch, name, p=None, omega=ones):
        found = seen(branch, name, p)
        n = 20
        return prediction.follow(
            found.lam_p, [preview.relation(found)] * n, [omega] * n, [0.1] * n, step=0.1
        )

    for branch, name, p in (("target", "pow", -0.5), ("online", "pow", 1.0)):
        up = path(branch, name, p)
        assert (np.diff(up.online) > 0).all()
        assert (up.target >= up.online).all()
    down = path("online", "pow", -0.5)
    assert (np.diff(down.online) < 0).all()
    np.testing.assert_allclose(path("online", "identity").online, up.target[0], rtol=1e-9)
    # Positives far apart: no filter lets the rank fall.
    assert (np.diff(path("online", "identity", omega=OMEGA).online) < 0).all()


def test_one_step_is_theorem_4():
    lam_p, lam_z = torch.tensor([0.7, 0.3]).double(), torch.tensor([0.6, 0.4]).double()
    omega = torch.tensor([0.9, 0.5]).double()
    path = prediction.follow(lam_p, [prediction.relation(lam_p, lam_z)], [omega], [0.2], step=0.2)
    new = theory.updated_eigenvalues(lam_p, lam_z, omega * lam_z, 0.2)
    want = [-(q * q.log()).sum() for q in (lam_p, new / new.sum())]
    np.testing.assert_allclose(path.online, [float(value.exp()) for value in want])


def test_a_run_that_follows_the_theorem_is_found_out(foretold):
    found = foretold
    assert found.pull == pytest.approx(prediction.PULLS[5])
    assert found.error < 1e-3  # interpolation of the filter
    assert found.error_first < 1e-3  # its filter and omega stay
    assert found.error_unmoved > 0.05
    assert (found.hits, found.changes) == (7, 7)
    np.testing.assert_allclose(found.told.target, found.measured.target, rtol=1e-2)
    # Perfect positives promise more than the run holds.
    assert found.aligned.online[-1] > found.measured.online[-1]
    assert not found.at_end
    for words in ("one number", "7 of 7 intervals", "eigenvectors by rank"):
        assert words in found.caption


def test_a_prediction_needs_spectra(tmp_path):
    short = write_run(tmp_path / "short", pull=0.5, epochs=2)
    with pytest.raises(ValueError, match="has 2 measured spectra"):
        preview.predict(runs.load(short))


def test_pictures_of_a_run(known, foretold, tmp_path, caplog):
    caplog.set_level("INFO", logger="rdm_solo")
    preview.preview(configure(f"run={known}", f"out={tmp_path}"))
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {
        f"{n}.{s}" for n in ("filter_target_pow", "prediction") for s in ("png", "pdf")
    }
    assert all(path.stat().st_size > 5000 for path in tmp_path.iterdir())
    assert "high-pass on the target branch, as an online filter low-pass" in caplog.text
    figure = preview.draw_prediction(foretold)
    online = {line.get_label(): line.get_ydata() for line in figure.axes[0].lines}
    np.testing.assert_array_equal(online["measured"], foretold.measured.online)
    assert len(online) == 4


def test_a_learned_filter_is_read_off_its_run(tmp_path, caplog):
    caplog.set_level("INFO", logger="rdm_solo")
    folder = write_run(tmp_path / "run", pull=0.5, name="learnable")
    preview.preview(configure(f"run={folder}", f"out={tmp_path / 'out'}"))
    assert "SimSiam: a learned filter; measured by rank it is low-pass at first" in caplog.text
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "prediction.png",
        "prediction.pdf",
    }


def test_refusals_are_sentences(known, tmp_path, capsys):
    for argv, says in (
        ([], "give filter=..., run=RUN_FOLDER, or both"),
        (["p=-1"], "belongs to a filter"),
        (["filter=learnable"], "is learned, no function to draw"),
        (["filter=online_log", "p=2"], "has no exponent"),
        (["filter=online_pow", "p=null"], "needs an exponent"),
        (["filter=online_log", "filter.function=torch.tahn"], "cannot be imported"),
        (["filter=online_log", "filter.function=lgo"], "did you mean 'log'"),
        (["filter=online_log", "filter.branch=both"], "online or target, got 'both'"),
        (["filter=online_log", "alpha=1"], "alpha must be a number between 0 and 1"),
        (["filter=online_log", "omega=2"], "omega must be a number from 0 to 1"),
        (["filter=online_log", "steps=0"], "steps must be a whole number"),
        (["filter=online_log", "spectrum=1/j"], "spectrum must be one of 1/i, 1/i^2, flat"),
        ([f"run={tmp_path}"], "is no run's folder"),
    ):
        with pytest.raises(SystemExit):
            preview._job(configure(*argv, f"out={tmp_path}"))
        assert says in capsys.readouterr().err, argv
    with pytest.raises(SystemExit):
        configure("filter=target_pwo")
    assert "did you mean 'target_pow'?" in capsys.readouterr().err


@pytest.mark.process
def test_the_command_as_typed(tmp_path):
    arguments = ["filter=target_pow", "p=-0.5", "spectrum=1/i^2", "k=16", "steps=3"]
    done = command("rdm_solo.preview", *arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("target_pow, p=-0.5: high-pass on the target branch")
    assert "glyph" not in done.stdout
    assert sorted(path.name for path in (tmp_path / "preview").iterdir()) == [
        "filter_target_pow.pdf",
        "filter_target_pow.png",
    ]
