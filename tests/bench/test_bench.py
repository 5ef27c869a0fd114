"""The cost benchmark runs the runs' own steps and counts the bytes that it says it counts."""

import re

import pytest
import torch

from rdm_solo.bench import cost as bench_cost
from rdm_solo.bench import entry, memory
from rdm_solo.bench import filters as bench_filters
from rdm_solo.bench import scale as bench_scale
from rdm_solo.bench import solvers as bench_solvers
from rdm_solo.bench import spectra as bench_spectra
from rdm_solo.filters import SpectralFilter
from rdm_solo.methods.chosen_filter import shipped_filters

SMALL = ["batch_size=8", "dataset.image_size=8", "backbone.name=small_resnet"]
SMALL += ["+backbone.kwargs.width=4"]
SMALL += ["method.kwargs.proj_hidden_dim=16", "method.kwargs.proj_output_dim=8"]


@pytest.mark.parametrize("method", ["simsiam filter=target_pow", "byol", "swav"])
def test_a_step_is_a_whole_step(method):
    step = bench_cost.Step("cpu", *f"method={method}".split(), *SMALL)
    before = {name: value.clone() for name, value in step.model.state_dict().items()}
    step.optimizer.param_groups[0]["lr"] = 0.1  # the schedule's warm-up starts at zero
    step()
    after = step.model.state_dict()
    assert not torch.equal(before["backbone.stem.0.weight"], after["backbone.stem.0.weight"])
    if method == "byol":
        name = "momentum_backbone.stem.0.weight"
        assert not torch.equal(before[name], after[name])


def test_options_that_no_run_could_use_are_refused():
    with pytest.raises(ValueError, match="batch_size must be a whole number of at least 2"):
        bench_cost.Step("cpu", *SMALL, "batch_size=x")


def test_the_peak_counts_what_is_held_at_once():
    def run() -> None:
        kept = torch.zeros(250, 1000)  # a megabyte
        for _ in range(5):
            kept.add(1)  # a second one, given back each time

    assert 2.0e6 <= memory.peak_bytes(run, "cpu") < 2.1e6


def test_residents_are_weights_buffers_and_momentum():
    step = bench_cost.Step("cpu", "method=vanilla", *SMALL)
    weights = sum(p.nbytes for p in step.model.parameters())
    buffers = sum(b.nbytes for b in step.model.buffers())
    assert step.resident() == weights + buffers
    step()
    learnt = sum(p.nbytes for group in step.optimizer.param_groups for p in group["params"])
    assert step.resident() == weights + buffers + learnt


def test_the_share_of_the_spectra_is_of_whole_epochs(capsys):
    """Its terms are on the page: steps, recorded steps, seconds of each."""
    bench_spectra.bench_spectra(2, "cpu", [*SMALL, "diagnostics.max_rows=1000"])
    out = capsys.readouterr().out
    assert "k = 8, batch 8" in out
    assert "6250 steps, 63 recorded (max_rows=1000)" in out  # each hundredth: 16 rows a step
    recording, read, spent, epoch, share = (
        float(re.search(pattern, out)[1])
        for pattern in (
            r"recording it takes +([\d.]+) s",
            r"reading all measures +([\d.]+) s",
            r": ([\d.]+) s of \d+ s,",
            r" s of (\d+) s,",
            r" s, ([\d.]+)%\n",
        )
    )
    assert abs(63 * recording + read - spent) < 63 * 0.0005 + 0.0005 + 0.05  # as printed
    assert 0 < share < 100
    assert abs(share / 100 * epoch - spent) < 0.05 + share / 100 * 0.5 + 5e-5 * epoch


def test_each_head_is_put_beside_a_step_without_one(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["bench", "step", "--runs", "1", *SMALL])
    entry.main()
    out = capsys.readouterr().out
    assert "batch 8, 8 px" in out
    assert re.findall(r"^(\w+ \w+) +[\d.]+ ms +[\d.]+% of it$", out, re.M) == [
        "learnable predictor",
        "online filter",
        "target filter",
    ]


def test_every_method_and_filter_is_compared(capsys, monkeypatch):
    monkeypatch.setattr(bench_cost, "CONTESTANTS", [*bench_cost.CONTESTANTS[:2], ("swav", "")])
    bench_cost.bench_cost(1, "cpu", SMALL)
    first, *lines = capsys.readouterr().out.splitlines()
    assert first.split()[:3] == ["method", "filter", "step"]
    assert [line.split()[0] for line in lines] == ["simsiam", "simsiam", "swav"]
    assert lines[0].split()[3:] == [
        "1.000",
        "1.00..1.00",
        "1.000",
        lines[0].split()[-3],
        "1.000",
        "1.000",
    ]


def test_filters_are_timed_beside_the_printed_algorithm(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["bench", "filters", "--runs", "1", "--shape", "8", "16"])
    entry.main()
    lines = capsys.readouterr().out.splitlines()[2:]
    assert [line.split()[0] for line in lines] == [
        name for name, filter_ in shipped_filters().items() if filter_.spectral
    ]
    assert all("(8, 16)" in line for line in lines)


def test_bytes_are_those_that_must_cross_whether_they_are_sent_or_counted(capsys, monkeypatch):
    """Rows of float32 and parts of a float64 Gram matrix; or that matrix, added."""
    for_each = {
        (128, 256): 128 * 256 * 4 / 2 + 128 * 128 * 8 / 2,
        (32, 16): 16 * 16 * 8 + 16,  # and how many rows are left out
    }
    assert {shape: bench_scale.counted(2, *shape)[1] for shape in for_each} == for_each
    measure = ["--runs", "1", "--processes", "2", "--shape", "128", "256", "--shape", "32", "16"]
    monkeypatch.setattr("sys.argv", ["bench", "scale", *measure, "--count", "8"])
    entry.main()
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    measured = [line for line in lines if line[0] == "2"]
    assert {line[3] for line in measured} >= {"eigh", "rows", "Gram,", "Gram"}
    sent = {line[3]: line[-2] for line in measured if line[1] == "(128,"}
    assert (sent["target"], sent["online"]) == ("0.12", "0.12")  # MiB
    assert [line[0] for line in lines].count("8") == 2


def test_products_are_timed_beside_the_decomposition(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["bench", "solvers", "--runs", "1", "--shape", "16", "24"])
    monkeypatch.setattr(bench_solvers, "CONDITIONS", (10, 1e7))
    entry.main()
    lines = [line.split()[2:7] for line in capsys.readouterr().out.splitlines()[2:]]
    assert [(p, many, enough) for p, _, many, enough, _ in lines] == [
        (p, many, enough)
        for p, many in (("-1.0", "55"), ("-0.5", "61"))
        for enough in ("yes", "no")
    ]
    assert all(float(line[-1]) < 1e-5 for line in lines[::2])


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["step", "--runs", "0"], "--runs must be at least 1, got 0"),
        (["cost", "batchsize=8"], "batch_size"),
        (["scale", "--shape", "9", "4"], "9 rows cannot be divided equally among 2 processes"),
    ],
)
def test_bad_options_get_one_sentence(argv, sentence, capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["bench", *argv])
    with pytest.raises(SystemExit) as ended:
        entry.main()
    assert ended.value.code == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize("branch", ["online", "target"])
def test_the_printed_algorithm_is_what_the_filters_compute(branch):
    x = bench_filters.batch_normed(32, 8).double()
    mine = SpectralFilter(branch, "pow", p=-0.5)(x)
    printed = bench_filters.algorithm_2(x, branch, lambda s: s**-0.5)
    torch.testing.assert_close(mine, printed)
