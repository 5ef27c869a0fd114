"""rdm_solo.Run and rdm_solo.Sweep: tables, figures, sentences; folders stay as they are."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import matplotlib
import numpy as np
import pytest
import torch
from conftest import ROOT
from matplotlib.figure import Figure
from omegaconf import OmegaConf
from support import small_runs, written_runs

import rdm_solo
from rdm_solo import report
from rdm_solo.notebook.figures import Figures, RunFigures, SweepFigures
from rdm_solo.notebook.tables import Table
from rdm_solo.report.captions import DRAWINGS

SEEDS = {"a": (80.0, 84.0, 91.0), "b": (95.0, 93.0)}  # the accuracies of each setting's seeds


def write(folder: Path, p: float = -0.5, seed: int = 0, epochs: int = 4, knn: float = 50.0) -> Path:
    """A run with spectra, whose last accuracy is that."""
    lam = torch.arange(1, 9, dtype=torch.float64) ** -1.0
    lams = [(lam ** (2 - 0.1 * e), lam ** (1 - 0.1 * e), 0.9 * lam) for e in range(epochs)]
    chosen = {"name": "target_pow", "branch": "target", "function": "pow"}
    written_runs.write(folder, lams, chosen=chosen, p=p)
    config = OmegaConf.load(folder / ".hydra" / "config.yaml")
    config.seed, config.max_epochs = seed, 4
    OmegaConf.save(config, folder / ".hydra" / "config.yaml")
    with open(folder / "metrics.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    more = {"feature/variance": 0.9, "train/loss": -0.5}
    rows = [{**row, **more, "val/knn_acc1": knn if i else ""} for i, row in enumerate(rows)]
    text = io.StringIO()
    table = csv.DictWriter(text, rows[0])
    table.writeheader()
    table.writerows(rows)
    (folder / "metrics.csv").write_text(text.getvalue())
    if epochs == 4:
        warnings = [{"kind": "complete collapse", "epoch": 2, "text": "all is one"}]
        summary = {"format": 2, "warnings": warnings, "seconds": 3.0}
        (folder / "summary.json").write_text(json.dumps(summary))
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path / "run")


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """Two settings of three and two seeds; a run that is behind, and one that diverged."""
    for p, accuracies in zip((-0.5, -0.3), SEEDS.values()):
        for seed, knn in enumerate(accuracies):
            write(tmp_path / "sweep" / f"{p}_{seed}", p, seed, knn=knn)
    write(tmp_path / "sweep" / "behind", -0.3, 7, epochs=2, knn=10.0)
    diverged = write(tmp_path / "sweep" / "diverged", -0.3, 8, epochs=3, knn=99.0)
    summary = {"format": 2, "warnings": [], "diverged": {"epoch": 4}}
    (diverged / "summary.json").write_text(json.dumps(summary))
    return tmp_path / "sweep"


@pytest.fixture
def without_pandas(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)


def state(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in sorted(folder.rglob("*"))
    }


def test_a_run_has_what_its_folder_has(folder, without_pandas):
    before = state(folder)
    run = rdm_solo.Run(folder)
    assert (run.method, run.filter, run.p, run.seed) == ("simsiam", "target_pow", -0.5, 0)
    assert run.config["batch_size"] == 64
    assert run.summary["seconds"] == 3.0
    assert run.metrics["epoch"].tolist() == [1, 2, 3, 4]
    assert np.isnan(run.metrics["val/knn_acc1"][0])
    assert run.last("val/knn_acc1") == 50.0
    assert run.warnings.rows() == [
        {"kind": "complete collapse", "epoch": 2, "text": "all is one"},
    ]
    assert run.verdicts["answer"][0].startswith("yes")
    assert run.spectra["lam_online"].shape == (4, 8)
    assert run.spectrum(2)["epoch"] == 2
    np.testing.assert_array_equal(run.spectrum()["lam_target"], run.spectra["lam_target"][-1])
    assert repr(run) == (
        "<Run SimSiam, h(σ) = σ^-0.5, digits, seed 0: 4 of 4 epochs; kNN 50.0 %; 1 warning; in "
        f"{folder}>"
    )
    assert state(folder) == before


def test_a_run_that_goes_on_is_read_again(tmp_path):
    folder = write(tmp_path / "run", epochs=2)
    run = rdm_solo.Run(folder)
    assert run.epochs == 2
    later = write(tmp_path / "later", epochs=3)
    (folder / "metrics.csv").write_bytes((later / "metrics.csv").read_bytes())
    assert run.epochs == 2
    assert run.reload() is run
    assert run.epochs == 3


def test_what_is_no_run_or_no_sweep_is_said(folder, sweep, tmp_path):
    with pytest.raises(ValueError, match="nowhere is not a folder"):
        rdm_solo.Run(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    for kind in (rdm_solo.Run, rdm_solo.Sweep):
        with pytest.raises(ValueError, match="empty holds no run"):
            kind(tmp_path / "empty")
    with pytest.raises(ValueError, match=re.escape(f"rdm_solo.Sweep({str(sweep)!r})")) as refused:
        rdm_solo.Run(sweep)
    assert "holds 7 of them" in str(refused.value)
    with pytest.raises(ValueError, match=re.escape(f"rdm_solo.Run({str(folder)!r})")):
        rdm_solo.Sweep(folder)
    with pytest.raises(ValueError, match="give the folder"):
        rdm_solo.Sweep()
    assert len(rdm_solo.Sweep(folder, sweep).runs) == 8
    with pytest.raises(ValueError, match="no spectra of epoch 9; the nearest are of epoch 4"):
        rdm_solo.Run(folder).spectrum(9)
    with pytest.raises(ValueError, match="did you mean 'val/knn_acc1'"):
        rdm_solo.Run(folder).last("val/knn_acc")


def test_settings_count_the_whole_runs(sweep, without_pandas):
    found = rdm_solo.Sweep(sweep)
    assert repr(found) == f"<Sweep 7 runs of 2 settings; in {sweep}>"
    rows = sorted(found.settings.rows(), key=lambda row: row["p"])
    assert [(row["p"], row["runs"], row["epochs"]) for row in rows] == [(-0.5, 3, 4), (-0.3, 4, 4)]
    for row, values in zip(rows, SEEDS.values()):
        assert row["val/knn_acc1"] == pytest.approx(np.mean(values))
        assert row["val/knn_acc1 sd"] == pytest.approx(np.std(values, ddof=1))
        assert row["val/knn_acc1 n"] == len(values)
    each = found.table.rows()
    assert len(each) == 7
    behind, diverged = (next(r for r in each if r["seed"] == seed) for seed in (7, 8))
    assert (behind["epochs"], behind["val/knn_acc1"], behind["diverged"]) == (2, 10.0, None)
    assert (diverged["epochs"], diverged["diverged"]) == (3, 4)
    assert diverged["Did anything collapse?"] == "diverged in epoch 4"
    seeds = next(r for r in found.over_seeds("val/knn_acc1").rows() if r["p"] == -0.3)
    assert (seeds["smallest"], seeds["largest"], seeds["n"]) == (93.0, 95.0, 2)
    assert any("it diverged in epoch 4" in sentence for sentence in found.problems)
    assert "1 of 3" in found.verdicts["answer"][0]  # the diverged run is judged, that behind is not


def test_the_best_setting_comes_with_its_spread(sweep):
    found = rdm_solo.Sweep(sweep)
    best = found.best("val/knn_acc1")
    assert (best.mean, best.n) == (94.0, 2)
    assert best.sd == pytest.approx(np.std(SEEDS["b"], ddof=1))
    assert {run.seed for run in best.runs} == {0, 1}
    assert best.next is not None
    assert best.next.mean == pytest.approx(np.mean(SEEDS["a"]))
    assert repr(best) == (
        "<best val/knn_acc1: SimSiam, h(σ) = σ^-0.3: 94 ± 1.414 (n = 2); next SimSiam, "
        "h(σ) = σ^-0.5: 85 ± 5.568 (n = 3)>"
    )
    assert found.best("val/knn_acc1", smallest=True).mean == 85.0
    with pytest.raises(ValueError, match="did you mean 'val/knn_acc1'"):
        found.best("val/knn_acc")
    with pytest.raises(ValueError, match="no setting has a value of val/acc1"):
        found.best("val/acc1")


def evaluate(folder: Path, kind: str, top1: float, epochs: int = 100) -> None:
    record = {"seed": 0, "top1": top1, "top5": 99.0, "protocol": {"epochs": epochs}}
    (folder / "linear.json").write_text(json.dumps({kind: [record]}))


def test_the_last_linear_accuracy_is_that_of_the_evaluations(folder):
    run = rdm_solo.Run(folder)
    assert np.isnan(run.last("linear/top1"))
    assert np.isnan(run.last("val/acc1"))
    seeds = [{"seed": s, "top1": 70.0 + 2 * s, "top5": 99.0, "protocol": {}} for s in range(2)]
    cached = [{**seeds[0], "top1": 10.0}]
    (folder / "linear.json").write_text(json.dumps({"cached": cached, "protocol": seeds}))
    assert run.reload().last("linear/top1") == 71.0
    assert run.last("val/knn_acc1") == 50.0
    with pytest.raises(ValueError, match="did you mean 'linear/top1'"):
        run.last("linear/top")


def test_linear_accuracies_of_other_protocols_are_not_compared(sweep, without_pandas):
    for i, name in enumerate(["-0.5_0", "-0.5_1", "-0.3_0"]):
        evaluate(sweep / name, "cached", 70.0 + i)
    evaluate(sweep / "-0.5_2", "protocol", 10.0)
    evaluate(sweep / "-0.3_1", "cached", 99.0, epochs=10)
    found = rdm_solo.Sweep(sweep)
    best = found.best("linear/top1")
    assert (best.mean, best.n) == (72.0, 1)
    assert best.next is not None
    assert (best.next.mean, best.next.n) == (70.5, 2)
    rows = sorted(found.settings.rows(), key=lambda row: row["p"])
    assert [(row["linear/top1"], row["linear/top1 n"]) for row in rows] == [(70.5, 2), (72.0, 1)]
    assert {row["n"] for row in found.over_seeds("linear/top1").rows()} == {1, 2}
    assert sum(np.isfinite(row["linear/top1"]) for row in found.table.rows()) == 3
    said = [line for line in found.problems if "are compared by another" in line]
    assert [re.search(r"seed \d", line)[0] for line in sorted(said)] == ["seed 1", "seed 2"]
    assert best.next.runs[2].linear["top1"].tolist() == [10.0]  # the run itself keeps them


def test_accuracies_on_different_data_sets_are_not_ranked_together(sweep):
    for path in [*sweep.glob("-0.3_*"), sweep / "behind", sweep / "diverged"]:
        config = OmegaConf.load(path / ".hydra" / "config.yaml")
        config.dataset.name = "cifar10"
        OmegaConf.save(config, path / ".hydra" / "config.yaml")
    found = rdm_solo.Sweep(sweep)
    with pytest.raises(ValueError, match=r"\(cifar10; digits\): choose .* dataset='cifar10'"):
        found.best("val/knn_acc1")
    on_digits, on_cifar = (found.best("val/knn_acc1", dataset=d) for d in ("digits", "cifar10"))
    assert (on_digits.mean, on_digits.next) == (85.0, None)
    assert (on_cifar.mean, on_cifar.next) == (94.0, None)
    assert found.best("erank/gap").next is not None
    assert found.best("erank/gap", dataset="digits").next is None
    with pytest.raises(ValueError, match="no run on 'digit'; did you mean 'digits'"):
        found.best("val/knn_acc1", dataset="digit")
    with pytest.raises(ValueError, match="no setting on digits has a value of val/acc1"):
        found.best("val/acc1", dataset="digits")


@pytest.mark.parametrize("fate", ["diverged", "collapsed"])
def test_a_setting_of_which_all_runs_were_lost_is_not_the_best(sweep, fate):
    shutil.rmtree(sweep / "behind")
    for path in sweep.glob("-0.3_*"):
        if fate == "diverged":
            (path / "summary.json").write_text('{"format": 2, "diverged": {"epoch": 5}}')
            continue
        head, *rows = (path / "metrics.csv").read_text().splitlines()
        lines = [f"{head},feature/spread,erank/centred", *(f"{row},0.001,1" for row in rows)]
        (path / "metrics.csv").write_text("\n".join(lines) + "\n")
    found = rdm_solo.Sweep(sweep)
    completely = [text for text in found.verdicts["answer"] if text.startswith("yes, completely")]
    assert len(completely) == (fate == "collapsed")
    assert found.best("val/knn_acc1").mean == 85.0


def test_tables_are_those_of_pandas_where_it_is(folder):
    pandas = pytest.importorskip("pandas")
    found = rdm_solo.Run(folder).metrics
    assert isinstance(found, pandas.DataFrame)
    assert found["epoch"].tolist() == [1, 2, 3, 4]


def test_a_long_and_wide_table_is_printed_in_part():
    made = Table({f"a_column_{i:02}": np.arange(100) * i / 3 for i in range(20)})
    lines = repr(made).splitlines()
    assert max(map(len, lines[:-1])) <= 100
    assert "... 80 more rows" in lines
    assert lines[-1].startswith("and 13 more columns: a_column_07, ")
    assert len(lines) == 1 + 20 + 1 + 1
    assert repr(Table({})) == "(no rows)"


def test_every_figure_of_the_report_is_reachable(folder, trained, tmp_path):
    """The names of the pictures that a page has, less the setting that a prediction's ends with."""
    page = report.write([folder, trained], tmp_path / "page")
    drawn = {re.sub(r"_\d+$", "", path.stem) for path in page.parent.glob("*.png")}
    assert {"spectra", "prediction", "roles"} <= drawn
    assert drawn | {drawing.name for drawing in DRAWINGS} <= set(dir(RunFigures))
    assert drawn | {drawing.name for drawing in DRAWINGS} <= set(dir(SweepFigures))


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A run with a checkpoint."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    small_runs.run(folder, *small_runs.SMALL)
    (folder / ".hydra").mkdir()
    OmegaConf.save(small_runs.configure(*small_runs.SMALL), folder / ".hydra" / "config.yaml")
    return folder


def test_every_figure_says_what_it_shows():
    for drawing in DRAWINGS:
        said = getattr(Figures, drawing.name).__doc__
        assert drawing.caption in said
        assert getattr(rdm_solo.plots, drawing.name).__doc__ in said
    for kind in (RunFigures, SweepFigures):
        assert all(getattr(kind, name).__doc__ for name in dir(kind) if name[0] != "_")


def test_a_figure_is_returned_and_nothing_else_changes(folder, sweep):
    before, mine = state(folder), {"font.size": 30.0, "mathtext.fontset": "cm"}
    with matplotlib.rc_context(mine):
        settings = dict(matplotlib.rcParams)
        run = rdm_solo.Run(folder)
        shown = [run.plot.effective_rank(), run.plot.spectra(), run.plot.epoch(1)]
        shown += [run.plot.prediction(), run.plot.losses(), rdm_solo.Sweep(sweep).plot.sweep()]
        assert dict(matplotlib.rcParams) == settings
        pictures = [figure._repr_png_() for figure in shown]
        assert dict(matplotlib.rcParams) == settings
    assert all(isinstance(figure, Figure) for figure in shown)
    assert all(picture.startswith(b"\x89PNG") for picture in pictures)
    assert run.plot.spectra()._repr_png_() == pictures[1]  # whatever the user's own style is
    assert state(folder) == before


def test_what_cannot_be_drawn_is_a_sentence(folder, sweep, tmp_path):
    run = rdm_solo.Run(folder)
    with pytest.raises(ValueError, match="No run is symmetric"):
        run.plot.symmetric()
    with pytest.raises(ValueError, match="setting must be one of SimSiam"):
        rdm_solo.Sweep(sweep).plot.prediction()
    label = rdm_solo.Sweep(sweep).settings["setting"][1]
    assert isinstance(rdm_solo.Sweep(sweep).plot.prediction(label), Figure)
    begun = write(tmp_path / "begun")
    (begun / "metrics.csv").unlink()
    (begun / "summary.json").unlink()
    with pytest.raises(ValueError, match="no run to draw"):
        rdm_solo.Run(begun).plot.losses()


def test_roles_are_drawn_and_nothing_is_written(trained):
    (trained / "roles.json").unlink(missing_ok=True)
    before, random = state(trained), torch.random.get_rng_state()
    figure = rdm_solo.Run(trained).plot.roles(rows=64)
    assert isinstance(figure, Figure)
    assert state(trained) == before
    assert torch.equal(torch.random.get_rng_state(), random)


@pytest.mark.process
def test_reading_and_drawing_need_nothing_that_training_needs(folder, sweep):
    code = """
import sys
for name in ("hydra", "lightning", "pytorch_lightning", "solo", "torchmetrics", "timm", "pandas"):
    sys.modules[name] = None
import rdm_solo
assert "torch" not in sys.modules
assert {"Run", "Sweep", "fit"} <= set(dir(rdm_solo))
run, sweep = rdm_solo.Run(sys.argv[1]), rdm_solo.Sweep(sys.argv[2])
print(run.metrics, run.verdicts, sweep.table, sweep.settings, sweep.best("erank/gap"))
figures = [run.plot.spectra(), run.plot.prediction(), sweep.plot.sweep()]
assert all(figure._repr_png_() for figure in figures)
assert "matplotlib.pyplot" not in sys.modules
try:
    rdm_solo.Ran
except AttributeError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder), str(sweep)],
        **{"capture_output": True, "text": True, "cwd": ROOT},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("module 'rdm_solo' has no attribute 'Ran'\n")
