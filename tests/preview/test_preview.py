"""The preview's command: filters by their names, runs of every design, its help and refusals."""

from functools import partial

import pytest
import torch
from matplotlib.figure import Figure
from support.report_pages import write

from rdm_solo import plots
from rdm_solo.cli import arguments, terminal
from rdm_solo.preview import show

TARGET = {"name": "target_pow", "branch": "target", "function": "pow"}


def preview(*argv: str) -> None:
    show.preview(arguments.compose("preview", argv))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return write(tmp_path_factory.mktemp("runs") / "p=-0.5", -0.5, seed=0, filter=TARGET)


@pytest.fixture(autouse=True)
def logged(caplog, monkeypatch):
    monkeypatch.setattr(plots, "save", partial(plots.save, formats=("png",)))
    caplog.set_level("INFO", logger="rdm_solo")
    return caplog


def names(folder) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize(
    ("argv", "words", "stem"),
    [
        (["filter=target_pow", "p=-1"], "target_pow, p=-1: high-pass", "target_pow_p=-1"),
        (["filter=both_pow"], "on both branches, which no filter separates", "both_pow_p=-1"),
        (["filter=online_truncate"], "online_truncate, keep=16", "online_truncate_keep=16"),
        (
            ["filter=target_pow", "p={schedule: linear, start: -0.1, end: -0.5}"],
            "at the end of the schedule: target_pow, p=-0.5: high-pass",
            "target_pow_p=-0.1_to_-0.5",
        ),
        (
            ["filter=target_pow", "p={schedule: steps, 1: -0.5, 11: 0, 21: -0.5}"],
            "from epoch 11: target_pow, p=0: no filter",
            "target_pow_p=-0.5_to_0_to_-0.5",
        ),
        (["filter=identity"], "identity: no filter (constant)", "identity"),
    ],
)
def test_a_figure_is_named_by_the_filter_that_it_shows(
    argv, words, stem, tmp_path, logged, monkeypatch
):
    monkeypatch.setattr(plots, "draw_filter", lambda effect, note: Figure())
    preview(*argv, f"out={tmp_path}", "k=8")
    assert words in logged.text
    assert names(tmp_path) == {f"filter_{stem}.png"}


def test_singular_values_are_those_after_a_batch_norm():
    cfg = arguments.compose("preview", ["filter=online_log1p", "k=8", "batch_size=32"])
    sigma, rows, _ = show.spectrum(cfg, None)
    assert rows == 32
    assert float(sigma.square().sum()) == pytest.approx(32 * 8)
    shares = torch.arange(1, 9).double().reciprocal()
    torch.testing.assert_close(sigma.square() / sigma[0] ** 2, shares)


def test_a_run_shows_its_filter(run, tmp_path, logged):
    preview(f"run={run}", f"out={tmp_path}")
    (picture,) = tmp_path.iterdir()
    assert picture.name == "filter_target_pow_p=-0.5.png"
    assert picture.stat().st_size > 5000
    assert "high-pass on the target branch, as an online filter low-pass" in logged.text


def test_a_function_that_is_passed_replaces_the_runs(run, tmp_path, logged, monkeypatch):
    (tmp_path / "own_filters.py").write_text("def half(sigma):\n    return 0 * sigma + 0.5\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(plots, "draw_filter", lambda effect, note: Figure())
    preview(f"run={run}", "filter.function=own_filters.half", f"out={tmp_path / 'out'}")
    assert "own_filters.half" in logged.text, "without the run's exponent"
    assert names(tmp_path / "out") == {"filter_target_own_filters.half.png"}


def test_refusals_are_sentences_and_leave_no_folder(run, tmp_path, capsys):
    hostile = write(tmp_path / "hostile", -0.5, 0, filter={**TARGET, "function": "os.getcwd"})
    learned = write(tmp_path / "learned", None, seed=0)
    for argv, words in (
        ([], "give filter=..., run=RUN_FOLDER, or both"),
        (["p=-1", f"run={run}"], "needs a filter"),
        (["filter=learnable"], "filter=learnable is not a function"),
        ([f"run={learned}"], "its filter is learned"),
        ([f"run={learned}", "filter.function=torch.asinh"], "filter.branch"),
        ([f"run={hostile}"], "function=os.getcwd, which is not part of this package"),
        ([f"run={tmp_path}"], "is not a run folder"),
    ):
        with pytest.raises(SystemExit), terminal.errors_without_traceback():
            preview(*argv, f"out={tmp_path / 'out'}")
        assert words in capsys.readouterr().err, argv
        assert not (tmp_path / "out").exists()
