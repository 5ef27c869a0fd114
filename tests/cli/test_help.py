"""What --help of each command says."""

import importlib.util
import re

import pytest

from rdm_solo.__main__ import COMMANDS
from rdm_solo.cli import arguments, option_help
from rdm_solo.cli.config_files import config_folder

pytestmark = pytest.mark.filterwarnings("ignore:.*found in sys.modules")

CONFIGS = ("config", "linear", "export", "preview")


def options_of(config: str, *choices: str) -> str:
    """Return what the help of a command says about its options, with these choices."""
    cfg = arguments.compose(config, choices, with_hydra=True)
    return option_help.options(config, _root_=cfg).replace("$$", "$")


def explained(text: str) -> dict[str, str]:
    """Return each option with its explanation, put together from its lines."""
    joined = re.sub(r"\n {40}", " ", text)
    return dict(re.findall(r"^  ([\w.]+)=.*?(?:  +(\S.*))?$", joined, re.M))


GROUPS = {
    group: sorted(path.stem for path in (config_folder() / group).glob("*.yaml"))
    for group in ("method", "dataset", "launcher", "logger", "trainer")
}
GROUPS["sizes"] = ["imagenet100", "large", "small"]  # without those that a data set chooses
if importlib.util.find_spec("hydra_plugins.hydra_ray_launcher") is None:
    GROUPS["launcher"].remove("ray")
# Each option of each group is chosen in one of as many choices as the largest group has.
CHOICES = [
    [f"{group}={options[i % len(options)]}" for group, options in GROUPS.items()]
    for i in range(max(map(len, GROUPS.values())))
]


@pytest.mark.parametrize(
    ("config", "choices"),
    [*((config, []) for config in CONFIGS), *(("config", some) for some in CHOICES)],
)
def test_every_option_is_explained(config, choices):
    text = options_of(config, *choices)
    options = explained(text)
    assert not [key for key, words in options.items() if len(words) < 4]
    assert max(map(len, text.splitlines())) <= 100
    for key in arguments.compose(config, choices):
        if key not in ("filter", "dataset", "launcher", "logger", "callbacks"):
            assert any(name == key or name.startswith(f"{key}.") for name in options), key


def test_values_are_those_of_the_run_that_would_start():
    text = options_of("config", "filter=target_pow", "dataset=folder")
    for value in ("max_epochs=100 ", "p=-0.5 ", "dataset.root=${oc.env:RDM_DATA,data}"):
        assert value in text
    assert "max_epochs=30 " in options_of("config")


def test_groups_of_the_command_are_listed_with_a_line_for_each_option():
    text = option_help.groups(_root_=arguments.compose("config", [], with_hydra=True))
    listed = dict(re.findall(r"^  (\w+=[\w/]+) +(\S.*)$", text, flags=re.M))
    for group, names in GROUPS.items():
        assert all(len(listed[f"{group}={name}"]) > 5 for name in names)
    groups = {name.partition("=")[0] for name in listed}
    assert groups == {*GROUPS, "callbacks", "experiment", "filter"}


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_a_help_that_writes_nothing(name, tmp_path, typed):
    out = typed("rdm_solo", name, "--help", cwd=tmp_path)
    assert (out.returncode, out.stderr) == (0, "")
    assert f"rdm_solo.{name}" in out.stdout or f"rdm-solo {name}" in out.stdout
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "argv", [("--help", "all", "dataset=folder"), ("dataset=folder", "--help", "all")]
)
def test_help_all_explains_the_options_of_the_chosen_data_set(argv, tmp_path, typed):
    out = typed("rdm_solo", "train", *argv, cwd=tmp_path)
    assert "\n  dataset.skip_broken=" in out.stdout


def test_the_package_itself_lists_the_commands(tmp_path, typed):
    out = typed("rdm_solo", cwd=tmp_path)
    assert out.returncode == 0
    for name, what in COMMANDS.items():
        assert re.search(rf"^  {name} +{what}$", out.stdout, flags=re.M)
    out = typed("rdm_solo", "trian", cwd=tmp_path)
    assert out.returncode == 2
    assert "did you mean 'train'?" in out.stderr
