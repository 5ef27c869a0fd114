"""The benchmarks measure whole steps, count memory and bytes, and print every contestant."""

import re

import pytest
import torch
from support.image_files import SIZE

from benchmarks import cost, filters, memory, scale, spectra, step, views
from benchmarks.gpu import bench, epochs, heads, steps
from benchmarks.gpu.__main__ import SECTIONS
from benchmarks.gpu.steps import SMALL
from rdm_solo.data import Pipeline
from rdm_solo.methods.chosen_filter import shipped_filters


@pytest.mark.parametrize("method", ["simsiam", "byol"])
def test_a_step_trains_every_encoder(method):
    whole = cost.Step("cpu", f"method={method}", *SMALL)
    encoder = whole.model.backbone
    if method == "byol":
        encoder = whole.model.momentum_backbone  # it follows the online one
    weight = encoder.stem[0].weight
    before = weight.clone()
    whole.optimizer.param_groups[0]["lr"] = 0.1  # the schedule's warm-up starts at zero
    whole()
    assert not torch.equal(weight, before)


def test_memory_counts_what_is_held_at_once():
    def run() -> None:
        kept = torch.zeros(250, 1000)  # a megabyte
        for _ in range(5):
            kept.add(1)  # a second one, freed each time

    assert 2.0e6 <= memory.peak_bytes(run, "cpu") < 2.1e6


def test_the_share_of_the_spectra_adds_up(capsys):
    spectra.measure(2, "cpu", [*SMALL, "diagnostics.max_rows=1000"])
    out = capsys.readouterr().out
    assert "6250 steps, 63 recorded (max_rows=1000)" in out  # each hundredth: 16 rows a step
    printed = r"recording it takes +(\S+) s.*all measures +(\S+) s.*: (\S+) s of"
    recording, reading, total = map(float, re.search(printed, out, re.S).groups())
    rounding = 64 * 0.0005 + 0.05  # of the printed numbers
    assert total == pytest.approx(63 * recording + reading, abs=rounding)


def test_every_contestant_is_printed(capsys, monkeypatch):
    monkeypatch.setattr(cost, "CONTESTANTS", cost.CONTESTANTS[:2])
    cost.measure(1, "cpu", SMALL)
    step.measure(1, "cpu", SMALL)
    monkeypatch.setattr("sys.argv", ["filters", "--runs", "1", "--shape", "8", "16"])
    filters.main()
    out = capsys.readouterr().out
    names = ["simsiam", "learnable predictor", "online filter", "target filter"]
    names += [name for name, shipped in shipped_filters().items() if shipped.spectral]
    names.remove("both_pow")
    for name in names:
        assert f"\n{name} " in out, name


@pytest.mark.long
def test_the_tables_for_a_gpu_are_complete(monkeypatch, tmp_path):
    """The same sections with tiny shapes on the CPU, so that no typing error waits for a GPU."""
    out = tmp_path / "tables.md"
    small = bench.Bench("cpu", runs=1, small=True, out=out)
    run = "as users start it"
    monkeypatch.setattr(epochs, "RUNS", {run: epochs.RUNS[run]})
    for section in SECTIONS.values():
        section(small)
    text = out.read_text()
    names = re.findall(r"^\| small, [^|]*\| float32 \| ([^|]*) \|", text, re.M)
    assert names[: len(steps.FILTERS)] == [*steps.FILTERS]
    loops_of_others = {name.partition(" ")[0] for name in names} - {"lightly"}
    assert {"solo-learn", "plain", "Algorithm"} <= loops_of_others
    filtered = r"^\| \(.* \| (?:σ|log)[^|]* \|.*\| (\S+) \| – \|$"
    errors = re.findall(filtered, text, re.M)
    assert len(errors) == 2 * (2 * len(heads.SOLVERS) + 1)
    assert max(map(float, errors)) < 3.1e-7  # the filters' documented error
    watched = re.findall(r"^\| (step of|step that|end of)", text, re.M)
    assert len(watched) == 4
    # The first epoch is not timed.
    assert re.search(rf"^\| {run} \| [\d.]+, [\d.]+, [\d.]+ \|", text, re.M)
    assert re.search(r"^\| plain [^|]* \| [\d.]+, [\d.]+ \| [\d.]+ \| 1.00 ", text, re.M)


@pytest.mark.long
def test_the_counted_bytes_are_those_that_must_cross(capsys):
    """Rows of float32 and parts of a float64 Gram matrix; or that matrix, added."""
    rows = 128 * 256 * 4 / 2 + 128 * 128 * 8 / 2
    assert scale.counted(2, 128, 256) == (128, rows)
    assert scale.counted(2, 32, 16) == (16, 16 * 16 * 8 + 16)  # and how many rows are left out
    scale.measure(1, [(128, 256)], [2])
    sent = re.findall(r"(target|online) .* (\S+) MiB$", capsys.readouterr().out, re.M)
    assert sent == [("target", "0.12"), ("online", "0.12")]


def test_pipelines_are_compared_by_equal_numbers_of_views(tmp_path):
    pipeline = Pipeline(SIZE, blur=0.5)
    in_memory = views.in_memory(pipeline, n=6, batch=4)
    assert [make() for make in in_memory] == [12, 12]
    views.write_jpegs(tmp_path, 3, 60, 80)
    from_files = views.from_files(pipeline, tmp_path, batch=2)
    assert [make() for make in from_files] == [6, 6, 6]
