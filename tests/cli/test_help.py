"""Each command's --help explains every option and shows the values that a run would have."""

import importlib.util
import re

import pytest
from omegaconf import DictConfig

from rdm_solo.__main__ import COMMANDS
from rdm_solo.cli import arguments, option_help
from rdm_solo.cli.config_files import config_folder

pytestmark = pytest.mark.filterwarnings("ignore:.*found in sys.modules")


CONFIGS = ["config", "linear", "export", "preview", "measure"]


def compose(config: str, *choices: str) -> DictConfig:
    return arguments.compose(config, choices, with_hydra=True)


def options_of(config: str, cfg: DictConfig) -> str:
    """Return the part of a command's help that lists its options."""
    text = option_help.options(config, _root_=cfg)
    return text.replace("$$", "$")


def explained(text: str) -> dict[str, str]:
    """Return each option's explanation, joined from its lines."""
    joined = re.sub(r"\n {40}", " ", text)
    entries = re.findall(r"^  ([\w.]+)=.*?(?:  +(\S.*))?$", joined, re.M)
    return dict(entries)


GROUPS = {}
for group in ("method", "dataset", "launcher", "logger", "trainer"):
    paths = sorted(config_folder().glob(f"{group}/*.yaml"))
    GROUPS[group] = [path.stem for path in paths]
GROUPS["sizes"] = ["imagenet100", "large", "small"]  # without those that a data set chooses
if importlib.util.find_spec("hydra_plugins.hydra_ray_launcher") is None:
    GROUPS["launcher"].remove("ray")
# Each option of each group is chosen once. Only the methods are more than the data sets.
CASES: list = [(name, []) for name in CONFIGS]
for number in range(len(GROUPS["method"])):
    choices = []
    for group, names in GROUPS.items():
        name = names[number % len(names)]
        choices.append(f"{group}={name}")
    marks = [pytest.mark.long] if number >= len(GROUPS["dataset"]) else []
    CASES.append(pytest.param("config", choices, marks=marks))


@pytest.mark.parametrize(("config", "choices"), CASES)
def test_every_option_is_explained(config, choices):
    cfg = compose(config, *choices)
    text = options_of(config, cfg)
    assert max(map(len, text.splitlines())) <= 100
    explanations = explained(text)
    for name, explanation in explanations.items():
        assert len(explanation) >= 4, name
    sections = {name.partition(".")[0] for name in explanations}
    listed_apart = {"filter", "dataset", "launcher", "logger", "callbacks", "hydra"}
    assert sections | listed_apart >= cfg.keys()


def test_values_are_the_defaults_of_the_chosen_options():
    text = options_of("config", compose("config", "filter=target_pow", "dataset=folder"))
    for value in ("max_epochs=100 ", "p=-0.5 ", "dataset.root=${oc.env:RDM_DATA,data}"):
        assert value in text
    assert "max_epochs=24 " in options_of("config", compose("config"))


def test_each_option_of_each_group_is_listed_with_an_explanation():
    text = option_help.groups(_root_=compose("config"))
    listed = set(re.findall(r"^  (\w+=[\w/]+) +\S.{5}", text, flags=re.M))
    for group, names in GROUPS.items():
        for name in names:
            assert f"{group}={name}" in listed
    groups = {name.partition("=")[0] for name in listed}
    assert groups == {*GROUPS, "callbacks", "experiment", "filter"}


# Hydra's help takes seconds: it copies every config of every group.
HYDRAS = {"train", *CONFIGS}
HELPS: list = [name for name in COMMANDS if name not in HYDRAS]
HELPS += [pytest.param(name, marks=pytest.mark.long) for name in COMMANDS if name in HYDRAS]


@pytest.mark.parametrize("name", HELPS)
def test_each_command_has_a_help_that_writes_nothing(name, tmp_path, typed):
    out = typed("rdm_solo", name, "--help", cwd=tmp_path)
    assert out.returncode == 0
    assert not out.stderr
    assert f"rdm_solo.{name}" in out.stdout or f"rdm-solo {name}" in out.stdout
    assert not list(tmp_path.iterdir())


def test_help_all_explains_the_options_of_the_chosen_data_set(tmp_path, typed):
    out = typed("rdm_solo", "train", "dataset=folder", "--help", "all", cwd=tmp_path)
    assert "\n  dataset.skip_broken=" in out.stdout


def test_the_package_itself_lists_the_commands(tmp_path, typed):
    out = typed("rdm_solo", cwd=tmp_path)
    assert out.returncode == 0
    for name, explanation in COMMANDS.items():
        assert re.search(rf"^  {name} +{explanation}$", out.stdout, flags=re.M)


def test_an_unknown_command_is_refused_with_the_nearest_name(tmp_path, typed):
    out = typed("rdm_solo", "trian", cwd=tmp_path)
    assert out.returncode == 2
    assert "did you mean 'train'?" in out.stderr
