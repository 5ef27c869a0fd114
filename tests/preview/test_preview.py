"""The preview's command: filters by their names, runs of every design, its help and refusals."""

from __future__ import annotations

import pytest
import torch
from conftest import command
from omegaconf import OmegaConf
from support.written_runs import by_the_theorem, write, write_run

from rdm_solo import cli, runs
from rdm_solo.preview import inputs, show
from rdm_solo.report import verdicts


def configure(*argv: str):
    return cli.compose("preview", argv, ["filter"])


@pytest.fixture(scope="module")
def known(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("runs") / "p=-0.5", pull=0.4)


def names(folder) -> set[str]:
    assert all(path.stat().st_size > 5000 for path in folder.iterdir())
    return {path.name for path in folder.iterdir()}


def test_pictures_of_a_run(known, tmp_path, caplog):
    caplog.set_level("INFO", logger="rdm_solo")
    show.preview(configure(f"run={known}", f"out={tmp_path}"))
    expected = ("filter_target_pow_p=-0.5", "prediction")
    assert names(tmp_path) == {f"{name}.{kind}" for name in expected for kind in ("png", "pdf")}
    assert "high-pass on the target branch, as an online filter low-pass" in caplog.text
    assert "to the online rank of the whole run" in caplog.text


@pytest.mark.parametrize(
    ("argv", "shown", "stem"),
    [
        (["filter=target_pow", "p=-1"], "target_pow, p=-1: high-pass", "target_pow_p=-1"),
        (
            ["filter=online_log1p", "filter.function=torch.asinh"],
            "torch.asinh: low-pass on the online branch",
            "online_torch.asinh",
        ),
        (
            ["filter=online_log1p", "filter.branch=target"],
            "target_log1p: low-pass on the target branch, as an online filter high-pass",
            "target_log1p",
        ),
        (
            ["filter=target_pow", "p={schedule: linear, start: -0.1, end: -0.5}"],
            "at the schedule's end target_pow, p=-0.5: high-pass",
            "target_pow_p=-0.1_to_-0.5",
        ),
        (["filter=identity"], "identity: no filter (constant)", "identity"),
    ],
)
def test_a_picture_is_named_by_the_filter_that_it_shows(argv, shown, stem, tmp_path, caplog):
    caplog.set_level("INFO", logger="rdm_solo")
    show.preview(configure(*argv, f"out={tmp_path}", "k=8", "steps=3"))
    assert shown in caplog.text
    assert names(tmp_path) == {f"filter_{stem}.png", f"filter_{stem}.pdf"}


def test_the_filter_that_the_pages_show_off_changes_over_the_range_looked_at():
    cfg = configure("filter=online_log1p", "filter.function=torch.asinh")
    sigma = inputs.singular_values(cfg, None)
    seen = inputs.choose(cfg.filter, cfg.p, cfg.steps, 0).on(sigma)
    values = seen.gain(sigma)
    assert seen.own == "low-pass"
    assert values[0] > 1.5 * values[-1]
    # As the page on filters says: log(2 sigma) for large sigma, sigma for small ones.
    torch.testing.assert_close(values, (2 * sigma).log(), rtol=2e-3, atol=0)
    small = torch.tensor([1e-3, 1e-2]).double()
    torch.testing.assert_close(seen.gain(small), small, rtol=1e-4, atol=0)


# --------------------------------------------------------------------------------------
# Runs without a filter that is a function
# --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["learnable", "linear"])
def test_a_learned_filter_is_judged_as_in_the_report(name, tmp_path, caplog):
    caplog.set_level("INFO", logger="rdm_solo")
    folder = write_run(tmp_path / "run", pull=0.5, epochs=3, name=name)
    show.preview(configure(f"run={folder}", f"out={tmp_path / 'out'}"))
    linear = "linear " if name == "linear" else ""
    assert f"the filter is what the {linear}predictor learned" in caplog.text
    assert "Is the filter low-pass? yes, by both tests" in caplog.text
    assert names(tmp_path / "out") == {"prediction.png", "prediction.pdf"}


@pytest.mark.parametrize(
    ("method", "words"),
    [
        (
            "swav",
            "SwAV: the target's Sinkhorn assignment is the implied filter (3 iterations at "
            "ε = 0.05; the online softmax has the temperature 0.1).",
        ),
        (
            "dino",
            "DINO: the target's softmax is the implied filter (centred, temperature 0.07; the "
            "online branch has the temperature 0.1).",
        ),
    ],
)
@pytest.mark.parametrize("directional", [1.0, 0.1])
def test_swav_and_dino_have_an_implied_filter(method, words, directional, tmp_path):
    folder = write(tmp_path / "run", by_the_theorem(0.4, 3), method, directional=directional)
    run = runs.load(folder)
    said = show.without_filter(run)
    assert said.startswith(words)
    assert "learned" not in said
    expected = "yes, by both tests" if directional == 1 else "by sorted eigenvalues only"
    assert verdicts.low_pass([run]).answer == expected
    assert f"Is the filter low-pass? {expected} (monotonicity 1.00 sorted" in said


def test_no_clear_slope_is_no_low_pass(tmp_path):
    epochs = [(p, z.sqrt().roll(1) / z.sqrt().sum(), plus) for p, z, plus in by_the_theorem(0.4, 3)]
    epochs = [(p.flip(0).roll(3), z, plus) for p, z, plus in epochs]
    folder = write(tmp_path / "run", epochs, "dino", directional=0.05)
    run = runs.load(folder)
    assert abs(run.last("filter/monotonicity")) < 0.9
    assert "Is the filter low-pass? no clear slope (" in show.without_filter(run)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"centring": False}, "(not centred, temperature 0.07;"),
        ({"sharpening": False}, "(centred, not sharpened;"),
        (
            {"kwargs.warmup_teacher_temperature_epochs": 5},
            "(centred, temperature 0.04 and later 0.07;",
        ),
    ],
)
def test_dinos_softmax_in_words(changes, words, tmp_path):
    run = runs.load(write(tmp_path / "run", by_the_theorem(0.4, 3), "dino"))
    for key, value in changes.items():
        OmegaConf.update(run.config, f"method.{key}", value)
    assert words in show.without_filter(run)


@pytest.mark.parametrize(
    ("method", "label"), [("vanilla", "Vanilla"), ("symsimsiam", "SymSimSiam")]
)
def test_symmetric_methods_have_no_filter(method, label, tmp_path, caplog):
    caplog.set_level("INFO", logger="rdm_solo")
    epochs = [(p, p, 0.9 * p) for p, _, _ in by_the_theorem(0.4, 3)]
    folder = write(tmp_path / "run", epochs, method)
    show.preview(configure(f"run={folder}", f"out={tmp_path / 'out'}"))
    assert f"{label}: no filter of any kind, since both branches are one output." in caplog.text
    assert "learned" not in caplog.text
    assert names(tmp_path / "out") == {"prediction.png", "prediction.pdf"}


# --------------------------------------------------------------------------------------
# The command
# --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["learnable", "target_pow"])
def test_a_typed_function_is_the_users_own(name, tmp_path, caplog, monkeypatch):
    """Also beside a run whose filter is none, or has an exponent; its faults are not the run's."""
    caplog.set_level("INFO", logger="rdm_solo")
    folder = write_run(tmp_path / "run", pull=0.5, epochs=3, name=name)
    branch = ["filter.branch=target"] if name == "learnable" else []
    (tmp_path / "own_filters.py").write_text("def half(sigma):\n    return 0 * sigma + 0.5\n")
    monkeypatch.syspath_prepend(tmp_path)
    out = f"out={tmp_path / 'out'}"
    show.preview(configure(f"run={folder}", "filter.function=own_filters.half", *branch, out))
    assert "own_filters.half" in caplog.text
    assert {"filter_target_own_filters.half.png", "prediction.png"} <= names(tmp_path / "out")
    for arguments, says in (
        ([*branch, "filter.function=own_filters.none"], "'own_filters.none' cannot be imported"),
        ([*branch, "filter.function=torch.sort"], "'torch.sort' must return one number"),
        (["filter.function=torch.asinh"], "add filter.branch=online or target")
        if branch
        else (
            ["filter.function=pwo"],
            "did you mean 'pow'",
        ),
    ):
        with pytest.raises(ValueError, match="filter") as refused:
            show.preview(configure(f"run={folder}", *arguments, f"out={tmp_path / 'new'}"))
        assert says in str(refused.value)
        assert not str(refused.value).startswith(str(folder))
        assert not (tmp_path / "new").exists()


def test_refusals_are_sentences(known, tmp_path, capsys):
    for argv, says in (
        ([], "give filter=..., run=RUN_FOLDER, or both"),
        (["p=-1"], "belongs to a filter"),
        (["filter=learnable"], "is learned, so there is no function to draw"),
        (["filter=none"], "it is for methods that cannot take a filter"),
        (["filter=none", f"run={known}"], "has no function to draw"),
        (["filter=online_log", "p=2"], "has no exponent"),
        (["filter=online_pow", "p=null"], "needs an exponent"),
        (["filter=online_log", "filter.function=torch.tahn"], "cannot be imported"),
        (["filter=online_log", "filter.function=lgo"], "did you mean 'log'"),
        (["filter=online_log", "filter.function=3"], "there is no filter function '3'"),
        (["filter=online_log", "filter.branch=both"], "one of online, target, got 'both'"),
        (["filter=online_log", "alpha=1"], "alpha must be a number above 0 and below 1"),
        (["filter=online_log", "alpha=true"], "alpha must be a number above 0 and below 1"),
        (["filter=online_log", "omega=2"], "omega must be a number from 0 to 1"),
        (["filter=online_log", "steps=0"], "steps must be a whole number"),
        (["filter=online_log", "spectrum=1/j"], "spectrum must be one of 1/i, 1/i^2, flat"),
        ([f"run={tmp_path}"], "is not a run folder"),
    ):
        with pytest.raises(SystemExit), cli.sentences():
            show.preview(configure(*argv, f"out={tmp_path}"))
        assert says in capsys.readouterr().err, argv
    with pytest.raises(ValueError, match=r"did you mean 'target_pow'\?"):
        configure("filter=target_pwo")


def test_the_help_explains_each_option_and_its_default(typed, tmp_path):
    done = typed("rdm_solo.preview", "--help", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    options = OmegaConf.load(cli.config_folder() / "preview.yaml")
    for name, value in options.items():
        if name not in ("defaults", "hydra"):
            shown = "null" if value is None else value
            (line,) = (x for x in done.stdout.split("\n") if x.strip().startswith(f"{name}="))
            assert line.split()[0] == f"{name}={shown}"
            assert len(line.split()) > 4, line
    for name in inputs.SPECTRA:
        assert name in done.stdout


@pytest.mark.process
def test_the_help_does_not_wait_for_torch(tmp_path):
    script = (
        "import sys\nimport rdm_solo.preview\nprint({'torch', 'matplotlib'} & set(sys.modules))"
    )
    (tmp_path / "imports.py").write_text(script)
    done = command("imports", cwd=tmp_path)
    assert done.stdout == "set()\n", done.stderr
    (tmp_path / "imports.py").write_text(
        "import atexit, sys\n"
        "from rdm_solo.preview import entry\n"
        "sys.argv[1:] = ['--help']\n"
        "atexit.register(lambda: print('loaded', 'torch' in sys.modules))\n"
        "entry.main()\n"
    )
    done = command("imports", cwd=tmp_path)
    assert done.stdout.rstrip().endswith("loaded False"), done.stderr


def test_the_command_as_typed(typed, tmp_path):
    arguments = ["filter=target_pow", "p=-0.5", "spectrum=1/i^2", "k=16", "steps=3"]
    done = typed("rdm_solo.preview", *arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("target_pow, p=-0.5: high-pass on the target branch")
    assert "glyph" not in done.stdout
    assert names(tmp_path / "preview") == {
        "filter_target_pow_p=-0.5.pdf",
        "filter_target_pow_p=-0.5.png",
    }
