"""Mistyped command lines and impossible values: one sentence each, never a traceback."""

from __future__ import annotations

import logging
import random
import sys
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf
from support.drills import draws, record, tries
from support.small_runs import DRAWN

import rdm_solo.__main__
from rdm_solo import cli, train
from rdm_solo.bench import step
from rdm_solo.evidence import study

# What each command takes, and how many mutations of it the suite tries.
COMPOSED = {
    "config": (["method=byol", "filter=target_pow", "p=-0.5", "seed=1", "optimizer.lr=0.1"], 35),
    "linear": (
        ["run=a", "dataset=digits", "lr=3", "features=cached", "augmentation.flip=null"],
        25,
    ),
    "export": (["run=a", "checkpoint=b", "out=c"], 25),
    "preview": (["filter=online_pow", "p=1", "spectrum=1/i^2", "k=8", "omega=0.5"], 35),
}
PARSED = {
    "report": ["nowhere", "--out", "pages", "--no-checkpoints"],
    "roles": ["nowhere", "--rows", "64", "--device", "cpu", "--out", "roles.png"],
    "bench": ["step", "--runs", "3", "--threads", "1", "batch_size=8"],
    "evidence": ["--seeds", "1", "2", "--runs", "runs", "--out", "page.md", "--jobs", "2"],
}
SIGNS = "=.,:[]{}()'\"\\/+~@#$%*?! -_0aZ\u00e9"


def mutated(argument: str, rng: random.Random) -> str:
    """A letter dropped, doubled, replaced, inserted or swapped; sometimes two of these."""
    for _ in range(rng.choice((1, 1, 2))):
        at = rng.randrange(len(argument))
        before, here, after = argument[:at], argument[at], argument[at + 1 :]
        argument = rng.choice(
            (
                before + after,
                before + here + here + after,
                before + rng.choice(SIGNS) + after,
                before + rng.choice(SIGNS) + here + after,
                before + after[:1] + here + after[1:],
            )
        )
        if not argument:
            return "="
    return argument


def is_sentence(said: str) -> bool:
    return len(said) > 20 and "\n" not in said and said.isprintable()


@pytest.mark.drill
@pytest.mark.parametrize("config", COMPOSED)
def test_a_mutated_command_line_gives_a_config_or_a_sentence(config):
    """A config has no key that the command does not know; other keys would be ignored."""
    plain, few = COMPOSED[config]
    rng, refused, survived = draws(f"lines {config}"), 0, 0
    known = {*leaves(OmegaConf.to_container(cli.compose(config, plain)))}
    number = tries(few, 300)
    for _ in range(number):
        argv = list(plain)
        at = rng.randrange(len(argv))
        argv[at] = mutated(argv[at], rng)
        if argv[at].startswith("-"):
            survived += 1  # a flag, which argparse reads
            continue
        try:
            made = {*leaves(OmegaConf.to_container(cli.compose(config, argv)))}
            group = argv[at].partition("=")[0] in ("method", "filter", "dataset")
            survived += group or made <= known
            if not group and not made <= known:
                print("unknown keys", argv, made - known)
        except ValueError as error:
            refused += 1
            survived += is_sentence(str(error))
            if not is_sentence(str(error)):
                print("no sentence", argv, repr(str(error)))
    assert refused > 3
    record(f"command lines of {config}", number, survived)


OWN = {
    "method": ("byol", ["method=mine"]),
    "filter": ("target_pow", ["filter=mine"]),
    "dataset": ("synthetic", ["dataset=mine"]),
    "callbacks": ("default", ["callbacks=mine"]),
    "trainer": ("cpu", ["trainer=mine"]),
}
# Lines that no config file of ours has.
LINES = [
    "- a list",
    "\tindented: by a tab",
    "key: [1, 2",
    "again: &a [*a]",
    "code: !!python/object/apply:os.system [false]",
    "seed: ${nowhere}",
    "p: ${oc.env:NOT_SET_AT_ALL}",
    "loop: ${loop}",
    "<<: 3",
    "? [1, 2]",
    "{}",
    "null",
    "defaults: [missing]",
    "# @package nowhere",
    "---",
    "\x00",
    "name: ???",
    "_target_: os.system",
    "_target_: nowhere.Nothing",
]


def mutated_text(text: str, rng: random.Random) -> str:
    """A line changed, dropped, doubled, moved in or replaced; or another value of its key."""
    lines = text.splitlines()
    for _ in range(rng.choice((1, 1, 2))):
        at = rng.randrange(len(lines)) if lines else 0
        here = lines[at : at + 1] or ["x"]
        key, colon, _ = here[0].partition(":")
        lines[at : at + 1] = rng.choice(
            (
                [mutated(here[0] or "x", rng)],
                [],
                here * 2,
                [f"  {here[0]}"],
                [here[0], rng.choice(LINES)],
                [f"{key}{colon} {rng.choice(VALUES)}"],
                [f"{key}{colon} {rng.choice(VALUES)}"],
            )
        )
    return "\n".join(lines) + "\n"


@pytest.mark.drill
@pytest.mark.parametrize("group", OWN)
def test_a_mutated_config_file_builds_a_run_or_is_refused_in_a_sentence(group, tmp_path):
    base, choice = OWN[group]
    text = (cli.config_folder() / group / f"{base}.yaml").read_text()
    (tmp_path / group).mkdir()
    file = tmp_path / group / "mine.yaml"
    rng, refused, survived = draws(f"files {group}"), 0, 0
    number = tries(3, 100)
    small = [o for o in DRAWN if not (group == "trainer" and o.startswith("trainer."))]
    small += ["scheduler.warmup_epochs=0", "trainer.enable_progress_bar=false"]
    for _ in range(number):
        changed = mutated_text(text, rng)
        file.write_bytes(changed.encode() if rng.random() < 0.95 else b"\xff" + changed.encode())
        argv = ["--config-dir", str(tmp_path), *small, *choice]
        try:
            train.build(cli.compose("config", argv), tmp_path / "run")
            survived += 1
        except (ValueError, ImportError) as error:
            refused += 1
            survived += is_sentence(str(error))
            if not is_sentence(str(error)):
                print("no sentence", repr(str(error)), changed)
        except Exception as error:
            print("escaped", type(error), repr(str(error)), changed)
    assert refused > number // 10
    record(f"config files of {group}", number, survived)


@pytest.mark.drill
@pytest.mark.parametrize("name", PARSED)
def test_mutated_arguments_start_the_command_or_end_with_a_sentence(
    name, monkeypatch, tmp_path, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(step, "bench_step", lambda **given: sys.exit(0))  # not for a minute
    monkeypatch.setattr(study, "run_all", lambda *given: sys.exit(0))
    monkeypatch.setattr(torch, "set_num_threads", lambda number: None)
    rng, refused, number = draws(f"arguments {name}"), 0, tries(25, 150)
    for _ in range(number):
        argv = list(PARSED[name])
        at = rng.randrange(len(argv))
        argv[at] = mutated(argv[at], rng)
        monkeypatch.setattr(sys, "argv", ["rdm-solo", name, *argv])
        with pytest.raises(SystemExit) as left:
            rdm_solo.__main__.main()
        said = capsys.readouterr().err.strip().splitlines()
        assert left.value.code in (0, 2), argv
        if left.value.code == 2:
            refused += 1
            assert "error: " in said[-1], argv
    assert refused > 3
    record(f"arguments of {name}", number, number)


def leaves(node, prefix=""):
    """The dotted keys of a config's values."""
    for key, value in node.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{prefix}{key}.")
        elif not key.startswith("_"):
            yield f"{prefix}{key}"


VALUES = [
    "0",
    "-1",
    "1e30",
    ".nan",
    "x",
    "null",
    "[]",
    "{}",
    "true",
    "''",
    "2.5",
    "[1,x]",
    "9" * 11,
]


@pytest.mark.drill
@pytest.mark.parametrize("method", ["simsiam", "swav", "dino"])
def test_any_value_of_any_option_builds_a_run_or_is_refused_in_a_sentence(method, tmp_path):
    small = [o for o in DRAWN if method == "simsiam" or "pred_hidden" not in o]
    plain = [*small, f"method={method}", "scheduler.warmup_epochs=0"]
    known = OmegaConf.to_container(cli.compose("config", plain))
    keys = [key for key in leaves(known) if key.split(".")[0] != "callbacks"]
    rng, refused, number = draws(f"values {method}"), [], tries(15, 150)
    for _ in range(number):
        try:
            typed = f"{rng.choice(keys)}={rng.choice(VALUES)}"
            train.build(cli.compose("config", [*plain, typed]), tmp_path)
        except (ValueError, ImportError) as error:
            refused.append(str(error))
    assert len(refused) > 3
    assert all(map(is_sentence, refused)), [said for said in refused if not is_sentence(said)]
    record(f"values of options with method={method}", number, number)


@pytest.mark.parametrize(
    "overrides",
    [
        ["++trainer.accumulate_grad_batches=0"],
        ["filter=target_pow", "p=1e30"],
        ["filter=target_pow", "p=-50"],
        ["++backbone.kwargs.width=0"],
        ["++backbone.kwargs.width=100000"],
        ["method.kwargs.proj_output_dim=0"],
        ["method.kwargs.proj_hidden_dim=x"],
        ["filter=online_log1p", "filter.function=os.system"],
        ["filter=online_log1p", "filter.function=torch.sum"],
        ["seed=99999999999999"],
        ["dataset.image_size=1"],
        ["dataset.num_train=x"],
        ["dataset.views=3"],
        ["knn.k=100000"],
        ["backbone=resnet18"],
        ["backbone.name=3"],
        ["backbone.kwargs=null"],
        ["optimizer=sgd"],
        ["scheduler=null"],
        ["scheduler.min_lr=x"],
        ["watch=false"],
        ["knn=5"],
        ["method.kwargs=3"],
        ["optimizer.lr=.nan"],
        ["batch_size=null"],
        ["trainer.precision=null"],
        ["++trainer.limit_train_batches=x"],
        ["++optimizer.kwargs.foo=3"],
        ["++backbone.kwargs.foo=3"],
        ["trainer.devices=x"],
        ["dataset.views.pipelines=3"],
        ["optimizer.trust_clip=x"],
        ["method=dino", "method.kwargs.warmup_teacher_temperature_epochs=[]"],
    ],
    ids=" ".join,
)
def test_a_value_that_no_run_can_use_is_refused_before_training(overrides, tmp_path):
    with pytest.raises(ValueError, match=r"\S") as refused:
        train.build(
            cli.compose("config", [*DRAWN, "scheduler.warmup_epochs=0", *overrides]), tmp_path
        )
    assert len(str(refused.value)) > 20


@pytest.mark.parametrize("refused", ["knn.k=100000", "trainer.devices=x", "++backbone.kwargs.a=1"])
@pytest.mark.parametrize("resumes", [False, True])
def test_a_refused_value_leaves_an_earlier_runs_folder_as_it_is(
    resumes, refused, an_earlier_run, monkeypatch, capsys
):
    files = {path: path.read_bytes() for path in an_earlier_run.rglob("*") if path.is_file()}
    monkeypatch.chdir(an_earlier_run.parent)
    options = ["resume=run", "max_epochs=2"] if resumes else ["hydra.run.dir=run", *DRAWN]
    monkeypatch.setattr(sys, "argv", ["rdm-solo", "train", *options, refused])
    with pytest.raises(SystemExit) as left:
        rdm_solo.__main__.main()
    assert left.value.code == 2
    assert capsys.readouterr().err.startswith("error: ")
    assert {
        path: path.read_bytes() for path in an_earlier_run.rglob("*") if path.is_file()
    } == files


@pytest.fixture(scope="module")
def an_earlier_run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("earlier") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logging.getLogger(), "handlers", [])
        patch.chdir(folder.parent)
        argv = ["rdm-solo", "train", *DRAWN, "max_epochs=1", "hydra.run.dir=run"]
        patch.setattr(sys, "argv", argv)
        rdm_solo.__main__.main()
    assert sorted(path.name for path in (folder / ".hydra").iterdir()) == [
        "config.yaml",
        "hydra.yaml",
        "overrides.yaml",
    ]
    said = (folder / "train.log").read_text().splitlines()
    assert said[0].startswith("max_epochs=1 in place of")
    assert "simsiam, learnable, synthetic: 1 epochs" in said[1]
    return folder


def test_a_refused_run_of_its_own_name_leaves_no_folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["rdm-solo", "train", *DRAWN, "knn.k=100000"])
    with pytest.raises(SystemExit):
        rdm_solo.__main__.main()
    assert not list(tmp_path.glob("runs/*"))


def test_a_sweep_trains_each_of_its_runs_and_prints_a_table(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    options = [*DRAWN, "filter=target_pow", "p=-0.5,-0.3", "max_epochs=1", "hydra.sweep.dir=sweep"]
    monkeypatch.setattr(sys, "argv", ["rdm-solo", "train", "-m", *options])
    rdm_solo.__main__.main()
    names = sorted(path.parent.name for path in tmp_path.glob("sweep/*/summary.json"))
    assert names == ["0_simsiam_target_pow_p=-0.5", "1_simsiam_target_pow_p=-0.3"]
    for name in names:
        folder = tmp_path / "sweep" / name
        assert OmegaConf.load(folder / ".hydra" / "config.yaml").p == float(name[-4:])
        shortened, begins, *_ = (folder / "train.log").read_text().splitlines()
        assert shortened.startswith("max_epochs=1 in place of the recipe's 100: ")
        assert f"in {folder}" in begins
    assert "python -m rdm_solo.report sweep" in capsys.readouterr().out


@pytest.fixture(autouse=True)
def _handlers_as_before():
    """Commands in this process log to files of their runs."""
    root = logging.getLogger()
    before = root.handlers[:]
    yield
    root.handlers[:] = before


OWN_FILES = {
    "torn": b"name: simsiam\nkwargs: {a: 1\n",
    "circle": b"name: &a [*a]\n",
    "latin": b"name: \xe4\n",
}


@pytest.mark.parametrize(
    "arguments",
    [
        ["train", "backbone.name=small_resnet", "++backbone.kwargs.width=0"],
        ["train", "hydra.run.dir=/proc/foo"],
        ["linear", "run=nowhere", "lr=1e30"],
        ["export", "run=it's,a=b"],
        ["report", "nowhere"],
        ["preview", "filter=target_pow", "p=1e30"],
        ["train", "--config-dir", "own", "method=torn"],
        ["train", "--config-dir", "own", "method=circle"],
        ["train", "--config-dir", "own", "method=latin"],
        ["train", "--config-dir", "own", "method=folder"],
    ],
    ids=" ".join,
)
def test_a_command_ends_with_one_sentence(arguments, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own" / "method" / "folder.yaml").mkdir(parents=True)
    for name, content in OWN_FILES.items():
        (tmp_path / "own" / "method" / f"{name}.yaml").write_bytes(content)
    monkeypatch.setattr(sys, "argv", ["rdm-solo", *arguments])
    with pytest.raises(SystemExit) as left:
        rdm_solo.__main__.main()
    assert left.value.code == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert said.startswith("error: ")
    if "own" in arguments:
        assert f"{tmp_path / 'own'}" in said or "folder" in said
