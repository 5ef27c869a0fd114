"""What --help of each command says."""

from __future__ import annotations

import importlib.util
import re
import sys

import pytest
from conftest import command

import rdm_solo.__main__
from rdm_solo import cli
from rdm_solo.__main__ import COMMANDS
from rdm_solo.cli import option_help

CONFIGS = {"train": "config", "linear": "linear", "export": "export", "preview": "preview"}


def shown(capsys, monkeypatch, config: str, *choices: str) -> str:
    monkeypatch.setattr(sys, "argv", ["command", "--help", *choices])
    with pytest.raises(SystemExit) as left:
        cli.command(lambda cfg: None, config)
    assert left.value.code == 0
    return capsys.readouterr().out


def explained(text: str) -> dict[str, str]:
    """Each option of a help with its explanation, put together from its lines."""
    found: dict[str, str] = {}
    for line in text.split("Options (key=value", 1)[1].splitlines()[1:]:
        option = re.match(r"  ([\w.]+)=", line)
        if option:
            found[option[1]] = line[40:]
        elif line.startswith(" " * 40) and found:
            found[list(found)[-1]] += " " + line.strip()
    return found


GROUPS = {
    group: sorted(path.stem for path in (cli.config_folder() / group).glob("*.yaml"))
    for group in ("method", "dataset", "launcher", "logger", "trainer")
}
if importlib.util.find_spec("hydra_plugins.hydra_ray_launcher") is None:
    GROUPS["launcher"].remove("ray")
# As many choices as the largest group has options: each option is chosen in one of them.
CHOICES = [
    [f"{group}={options[i % len(options)]}" for group, options in GROUPS.items()]
    for i in range(max(map(len, GROUPS.values())))
]


@pytest.mark.parametrize(
    ("config", "choices"),
    [*((config, []) for config in CONFIGS.values()), *(("config", some) for some in CHOICES)],
)
def test_every_option_is_explained(config, choices, capsys, monkeypatch):
    text = shown(capsys, monkeypatch, config, *choices)
    options = explained(text)
    unexplained = [key for key, words in options.items() if len(words.strip()) < 4]
    assert not unexplained
    assert max(map(len, text.splitlines())) <= 100
    cfg = cli.compose(config, choices)
    for key in cfg:
        if key not in ("filter", "dataset", "launcher", "logger", "callbacks"):
            assert any(name == key or name.startswith(f"{key}.") for name in options), key


def test_values_are_those_of_the_run_that_would_start(capsys, monkeypatch):
    assert "max_epochs=30 " in shown(capsys, monkeypatch, "config")
    assert "p=-0.5 " in shown(capsys, monkeypatch, "config", "filter=target_pow")
    of_folder = shown(capsys, monkeypatch, "config", "dataset=folder")
    assert "dataset.root=${oc.env:RDM_DATA,data}" in of_folder


def test_groups_of_the_command_alone_are_listed_with_a_line_for_each_option(capsys, monkeypatch):
    text = shown(capsys, monkeypatch, "config").split("Options (key=value")[0]
    listed = dict(re.findall(r"^  (\w+=[\w/]+) +(\S.*)$", text, flags=re.M))
    for group in ("dataset", "filter", "launcher", "logger", "method", "trainer"):
        for path in (cli.config_folder() / group).glob("*.yaml"):
            assert len(listed[f"{group}={path.stem}"]) > 5
    assert "byol_learnable" in listed["experiment=cifar10/"]
    assert {name.partition("=")[0] for name in listed} == {
        *("callbacks", "dataset", "experiment", "filter", "launcher", "logger", "method"),
        "trainer",
    }


def test_comments_above_and_behind_a_key(tmp_path):
    (tmp_path / "a.yaml").write_text(
        "# Of the file.\nfirst: 1\n# Above,\n# twice.\nsecond: # section\n  inner: '#' # behind\n"
        "  listed:\n    - one: 1 # in a list\n"
    )
    assert option_help.comments(tmp_path / "a.yaml", "group") == {
        "group.first": "",
        "group.second": "Above, twice. section",
        "group.second.inner": "behind",
        "group.second.listed": "",
        "group.second.listed.0.one": "in a list",
    }


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_each_command_is_plain(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["rdm-solo", name, "--help"])
    with pytest.raises(SystemExit) as left:
        rdm_solo.__main__.main()
    text, errors = capsys.readouterr()
    assert (left.value.code, errors) == (0, "")
    assert not re.search(r":\w+:`|``", text)
    assert "---|" not in text.replace(" ", "")
    assert f"rdm_solo.{name}" in text
    assert not list(tmp_path.iterdir())
    bare = re.findall(
        r"^ +(--?[\w-]+(?: [A-Z{][^ ]*)*(?: \.\.\.\])?)$\n(?! {10,}\S)", text, flags=re.M
    )
    assert not bare  # every flag has its explanation


def test_the_package_itself_lists_the_commands(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["rdm-solo"])
    rdm_solo.__main__.main()
    shown = capsys.readouterr().out
    for name, what in COMMANDS.items():
        assert re.search(rf"^  {name} +{what}$", shown, flags=re.M)
    monkeypatch.setattr(sys, "argv", ["rdm-solo", "trian"])
    with pytest.raises(SystemExit) as left:
        rdm_solo.__main__.main()
    assert left.value.code == 2
    assert "did you mean 'train'?" in capsys.readouterr().err


@pytest.mark.process
def test_the_commands_as_modules_that_python_starts(tmp_path):
    assert "rdm-solo COMMAND --help" in command("rdm_solo", cwd=tmp_path).stdout
    done = command("rdm_solo.export", "--help", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "python -m rdm_solo.export run=RUN_FOLDER" in done.stdout
