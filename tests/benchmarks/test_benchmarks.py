"""The benchmarks measure whole steps, count memory and bytes, and print every contestant."""

import re

import pytest
import torch
from support.image_files import SIZE

from benchmarks import cost, filters, gpu, memory, scale, spectra, step, views
from rdm_solo.data import Pipeline
from rdm_solo.filters import SpectralFilter
from rdm_solo.methods.chosen_filter import shipped_filters

SMALL = gpu.SMALL


@pytest.mark.parametrize("method", ["simsiam filter=target_pow", "byol", "swav"])
def test_a_step_is_a_whole_step(method):
    whole = cost.Step("cpu", *f"method={method}".split(), *SMALL)
    before = {name: value.clone() for name, value in whole.model.state_dict().items()}
    whole.optimizer.param_groups[0]["lr"] = 0.1  # the schedule's warm-up starts at zero
    whole()
    after = whole.model.state_dict()
    names = ["backbone.stem.0.weight"]
    if method == "byol":
        names.append("momentum_backbone.stem.0.weight")
    for name in names:
        assert not torch.equal(before[name], after[name])


def test_memory_counts_what_is_held_at_once():
    def run() -> None:
        kept = torch.zeros(250, 1000)  # a megabyte
        for _ in range(5):
            kept.add(1)  # a second one, freed each time

    assert 2.0e6 <= memory.peak_bytes(run, "cpu") < 2.1e6
    whole = cost.Step("cpu", "method=vanilla", *SMALL)
    held = sum(x.nbytes for x in (*whole.model.parameters(), *whole.model.buffers()))
    assert whole.resident() == held
    whole()
    momentum = sum(p.nbytes for group in whole.optimizer.param_groups for p in group["params"])
    assert whole.resident() == held + momentum


def test_the_share_of_the_spectra_adds_up(capsys):
    spectra.measure(2, "cpu", [*SMALL, "diagnostics.max_rows=1000"])
    out = capsys.readouterr().out
    assert "6250 steps, 63 recorded (max_rows=1000)" in out  # each hundredth: 16 rows a step
    patterns = (r"recording it takes +([\d.]+) s", r"all measures +([\d.]+) s", r": ([\d.]+) s of")
    recording, reading, total = (float(re.search(pattern, out)[1]) for pattern in patterns)
    assert abs(63 * recording + reading - total) < 63 * 0.0005 + 0.0005 + 0.05  # as printed


SIDES = ("online", "target")


def test_every_contestant_is_printed(capsys, monkeypatch):
    monkeypatch.setattr(cost, "CONTESTANTS", [*cost.CONTESTANTS[:2], ("swav", "")])
    cost.measure(1, "cpu", SMALL)
    lines = capsys.readouterr().out.splitlines()[1:]
    assert [line.split()[0] for line in lines] == ["simsiam", "simsiam", "swav"]
    step.measure(1, "cpu", SMALL)
    heads = re.findall(r"^(\w+ \w+) +[\d.]+ ms +[\d.]+% of it$", capsys.readouterr().out, re.M)
    assert heads == ["learnable predictor", "online filter", "target filter"]
    monkeypatch.setattr("sys.argv", ["filters", "--runs", "1", "--shape", "8", "16"])
    filters.main()
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()[2:]]
    filters_of_a_branch = [name for name, f in shipped_filters().items() if f.branch in SIDES]
    assert names == filters_of_a_branch


def test_the_tables_for_a_gpu_are_complete(tmp_path):
    """The same sections with tiny shapes on the CPU, so that no typing error waits for a GPU."""
    out = tmp_path / "tables.md"
    bench = gpu.Bench("cpu", runs=1, small=True, out=out)
    for section in (gpu.decompositions, gpu.filters, gpu.steps, gpu.spectra):
        section(bench)
    rows = [line.strip("| ").split(" | ") for line in out.read_text().splitlines() if "|" in line]
    heads = {cells[2] for cells in rows if cells[0].startswith("small")}
    assert heads == {*gpu.FILTERS, "plain PyTorch, learned predictor"}
    errors = [float(cells[-2]) for cells in rows if cells[0].startswith("(")]
    assert len(errors) == 2
    assert max(errors) < 3.1e-7  # the filters' documented error


@pytest.mark.long
def test_epochs_are_timed_from_outside(monkeypatch, tmp_path):
    monkeypatch.setattr(gpu, "EPOCHS", {"spectra alone": gpu.EPOCHS["spectra alone"]})
    out = tmp_path / "tables.md"
    gpu.epochs(gpu.Bench("cpu", runs=1, small=True, out=out))
    (row,) = (line for line in out.read_text().splitlines() if line.startswith("| spectra alone"))
    assert len(row.split("|")[2].split(",")) == 2  # of three epochs, the first is not timed


@pytest.mark.long
def test_bytes_are_those_that_must_cross(capsys):
    """Rows of float32 and parts of a float64 Gram matrix; or that matrix, added."""
    expected = {
        (128, 256): 128 * 256 * 4 / 2 + 128 * 128 * 8 / 2,
        (32, 16): 16 * 16 * 8 + 16,  # and how many rows are left out
    }
    assert {shape: scale.counted(2, *shape)[1] for shape in expected} == expected
    scale.measure(1, list(expected), [2])
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    sent = {line[3]: line[-2] for line in lines if line[1:3] == ["(128,", "256)"]}
    assert (sent["target"], sent["online"]) == ("0.12", "0.12")  # MiB


@pytest.mark.parametrize("branch", ["online", "target"])
def test_the_printed_algorithm_is_what_the_filters_compute(branch):
    x = filters.batch_normed(32, 8).double()
    printed = filters.algorithm_2(x, branch, lambda s: s**-0.5)
    torch.testing.assert_close(SpectralFilter(branch, "pow", p=-0.5)(x), printed)


def test_pipelines_are_compared_by_equal_numbers_of_views(tmp_path):
    assert [make() for make in views.in_memory(Pipeline(32), n=6, batch=4)] == [12, 12]
    views.write_jpegs(tmp_path, 3, 60, 80)
    pipeline = Pipeline(SIZE, blur=0.5)
    assert [make() for make in views.from_files(pipeline, tmp_path, batch=2)] == [6, 6, 6]
