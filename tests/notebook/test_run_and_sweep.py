"""rdm_solo.Run and rdm_solo.Sweep: tables, figures, refusals; folders stay as they are."""

import json
import subprocess
import sys
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from conftest import ROOT
from support import report_pages

import rdm_solo
from rdm_solo.ground.errors import UserError

pytest.importorskip("pandas")
SEEDS = {-0.5: (80.0, 84.0, 91.0), -0.3: (95.0, 93.0)}  # accuracies by exponent


def write(folder: Path, p=-0.5, seed=0, epochs=4, knn=50.0, spread=0.9) -> Path:
    """Write epochs of a run of four, with an accuracy from the second one on, and its loss."""
    accuracies = [knn] * epochs
    accuracies[0] = ""
    columns = {
        "val/knn_acc1": accuracies,
        "train/loss": [-knn / 100] * epochs,
        "feature/spread": [spread] * epochs,
    }
    return report_pages.write(folder, p, seed, epochs, columns, max_epochs=4)


def summarise(folder: Path, **entries: object) -> None:
    (folder / "summary.json").write_text(json.dumps(entries))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = write(tmp_path / "run")
    warning = {"kind": "complete collapse", "epoch": 2, "text": "all is one"}
    summarise(folder, warnings=[warning], seconds=3.0)
    return folder


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """Two settings of three and two seeds; a run that is behind, and one that diverged."""
    folder = tmp_path / "sweep"
    for p, accuracies in SEEDS.items():
        for seed, knn in enumerate(accuracies):
            write(folder / f"{p}_{seed}", p, seed, knn=knn)
    write(folder / "behind", -0.3, 7, epochs=2, knn=10.0)
    diverged = write(folder / "diverged", -0.3, 8, epochs=3, knn=99.0)
    summarise(diverged, diverged={"epoch": 4})
    return folder


def state(folder: Path) -> dict[Path, int]:
    """Return when each file and folder was last written."""
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


def test_a_run_has_what_its_folder_has(folder):
    evaluations = {"cached": [{"seed": 0, "top1": 70.0}, {"seed": 1, "top1": 72.0}]}
    (folder / "linear.json").write_text(json.dumps(evaluations))
    before = state(folder)
    run = rdm_solo.Run(folder)
    assert run.last("linear/top1") == 71.0
    assert run.linear["top1"].tolist() == [70.0, 72.0]
    assert (run.method, run.filter) == ("simsiam", "target_pow")
    assert (run.p, run.seed) == (-0.5, 0)
    assert run.config["batch_size"] == 64
    assert run.metrics["val/knn_acc1"].isna().tolist() == [True, False, False, False]
    assert run.last("val/knn_acc1") == 50.0
    assert run.warnings.to_dict("records") == run.summary["warnings"]
    assert run.verdicts["answer"][0].startswith("yes")
    assert run.spectra["lam_online"].shape == (4, 8)
    assert run.spectrum(2)["epoch"] == 2
    assert run.spectrum()["epoch"] == 4
    assert "4 of 4 epochs; warnings: 1" in repr(run)
    assert state(folder) == before


def test_what_is_no_run_or_no_sweep_is_refused(folder, sweep, tmp_path):
    for read in (rdm_solo.Run, rdm_solo.Sweep):
        with pytest.raises(UserError, match="nowhere"):
            read(tmp_path / "nowhere")
    with pytest.raises(UserError, match="behind"):  # one of its runs
        rdm_solo.Run(sweep)
    assert len(rdm_solo.Sweep(folder, sweep).runs) == 8
    for read in (rdm_solo.Run(folder).last, rdm_solo.Sweep(sweep).best):
        with pytest.raises(UserError, match="did you mean 'val/knn_acc1'"):
            read("val/knn_acc")


def test_settings_count_the_whole_runs(sweep):
    runs = rdm_solo.Sweep(sweep)
    assert "7 runs, 2 settings" in repr(runs)
    settings = runs.settings.set_index("p")
    assert settings["runs"].to_dict() == {-0.5: 3, -0.3: 4}
    assert set(settings["epochs"]) == {4}
    assert settings["val/knn_acc1"].to_dict() == {-0.5: 85.0, -0.3: 94.0}
    assert settings["val/knn_acc1 n"].to_dict() == {-0.5: 3, -0.3: 2}
    assert settings["val/knn_acc1 sd"][-0.5] == pytest.approx(np.std(SEEDS[-0.5], ddof=1))
    table = runs.table.set_index("seed")
    assert table["val/knn_acc1"][7] == 10.0
    assert table["diverged"][8] == 4
    assert any("diverged in epoch 4" in sentence for sentence in runs.problems)
    assert "1 of 3" in runs.verdicts["answer"][0], "the diverged run is judged, that behind is not"


def test_the_best_setting_is_healthy_and_comes_with_its_spread(sweep):
    write(sweep / "collapsed", -0.7, knn=99.0, spread=0.001)
    runs = rdm_solo.Sweep(sweep)
    best = runs.best("val/knn_acc1")
    assert best.mean == 94.0
    assert best.n == 2
    assert best.sd == pytest.approx(np.std(SEEDS[-0.3], ddof=1))
    assert [run.seed for run in best.runs] == [0, 1]
    assert best.next.mean == 85.0
    assert runs.best("val/knn_acc1", smallest=True).mean == 85.0
    assert runs.best("train/loss").mean == pytest.approx(-0.94), "the lowest"
    assert runs.best("train/loss", smallest=False).mean == pytest.approx(-0.85)
    with pytest.raises(UserError, match="a value of linear/top1"):
        runs.best("linear/top1")


def test_accuracies_on_different_data_sets_are_not_ranked_together(sweep):
    for path in sweep.glob("-0.5_*/.hydra/config.yaml"):
        path.write_text(path.read_text().replace("digits", "cifar10"))
    runs = rdm_solo.Sweep(sweep)
    with pytest.raises(UserError, match="cifar10; digits"):
        runs.best("val/knn_acc1")
    best = runs.best("val/knn_acc1", dataset="cifar10")
    assert (best.mean, best.next) == (85.0, None)
    assert runs.best("erank/gap").next is not None


def test_a_figure_is_returned_and_nothing_else_changes(folder, sweep):
    before = state(folder)
    with matplotlib.rc_context({"font.size": 30.0, "mathtext.fontset": "cm"}):
        settings = dict(matplotlib.rcParams)
        plot = rdm_solo.Run(folder).plot
        picture = plot.spectra()._repr_png_()
        assert len(plot.epoch(1).axes) == 2
        assert rdm_solo.Sweep(sweep).plot.sweep().axes
        assert dict(matplotlib.rcParams) == settings
    assert plot.spectra()._repr_png_() == picture, "whatever the user's own style is"
    assert state(folder) == before
    with pytest.raises(UserError):
        plot.symmetric()
    with pytest.raises(AttributeError, match="spectra"):
        _ = plot.spectrum
    assert {"spectra", "epoch"} <= set(dir(plot))
    assert plot.spectra.__doc__


@pytest.mark.long
def test_reading_drawing_and_watching_need_nothing_that_training_needs(folder):
    code = """
import sys
for name in ("hydra", "lightning", "pytorch_lightning", "solo", "timm"):
    sys.modules[name] = None
import rdm_solo
assert "torch" not in sys.modules
assert {"Run", "Sweep", "fit"} <= set(dir(rdm_solo))
run = rdm_solo.Run(sys.argv[1])
print(run.metrics, run.verdicts, run.plot.effective_rank()._repr_png_()[:4])
assert "matplotlib.pyplot" not in sys.modules
import rdm_solo.report, rdm_solo.theory, torch
rdm_solo.Watch(sys.argv[1] + "/watched", {"projector": torch.nn.Linear(2, 2)}).close()
"""
    subprocess.run([sys.executable, "-c", code, str(folder)], check=True, cwd=ROOT)
