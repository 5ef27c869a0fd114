"""README and docs/: links lead somewhere, Python runs, commands are accepted, the site builds."""

import functools
import importlib.util
import pkgutil
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml
from conftest import ROOT
from hydra.core.override_parser.overrides_parser import OverridesParser

from rdm_solo.cli import arguments
from rdm_solo.cli.config_files import config_folder
from rdm_solo.runs.columns import COLUMNS

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
for pattern in ("docs/*.md", "benchmarks/*.md", "studies/*/*.md"):
    for path in sorted(ROOT.glob(pattern)):
        if not path.name.startswith("page"):  # a template of a page
            PAGES.append(path)
HOSTS = {"docs.astral.sh", "github.com", "hydra.cc", "openreview.net"}
# Commands whose options are Hydra's: their config, and what they choose where the line does not.
CONFIGS = {"train": "config", "linear": "linear", "export": "export", "preview": "preview"}
# In place of what a reader fills in.
FILLED = re.compile(r"\$\{?\w+(\[[^]]*\])?\}?")

# The flags of the commands that use argparse.
FLAGS: set[str] = set()
for folder in ("rdm_solo", "studies", "benchmarks"):
    for source in (ROOT / folder).rglob("*.py"):
        FLAGS.update(re.findall(r'add_argument\(\s*"(--[\w-]+)"', source.read_text()))

pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def prose(text: str) -> str:
    """Return the text without code, whose brackets are no links."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    return re.sub(r"^ {4}.*$|`[^`\n]*`", "", text, flags=re.M)


def anchors(text: str) -> set[str]:
    """Return the headings' names in links, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    names = set()
    for heading in re.findall(r"^#+ (.+)$", text, re.M):
        words = re.sub(r"[^\w\- ]", "", heading.lower())
        names.add(words.replace(" ", "-"))
    return names


def links(page: Path) -> list[str]:
    return re.findall(r"\]\(([^)\s]+)\)", prose(page.read_text()))


@pages
def test_links_lead_somewhere(page):
    for link in links(page):
        parts = urlsplit(link)
        if parts.scheme:
            assert parts.scheme == "https", link
            assert parts.netloc in HOSTS, link
            continue
        target = (page.parent / parts.path).resolve() if parts.path else page
        assert target.is_file(), link
        assert target.is_relative_to(ROOT), link
        if parts.fragment:
            assert parts.fragment in anchors(target.read_text()), link


def blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.M | re.S)


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p)], ids=lambda page: page.name)
@pytest.mark.filterwarnings("error:constrained_layout not applied")
def test_its_python_runs_from_top_to_bottom(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for code in blocks(page):
        exec(compile(code, page.name, "exec"), names)


def commands(page: Path) -> Iterator[list[str]]:
    """Return what follows ``rdm-solo``, or ``-m`` of Python or torchrun, on a page."""
    text = re.sub(r"\\\n\s+", "", page.read_text())
    text = re.sub(r"(?<![\w/-])rdm-solo (?=\w)", "-m rdm_solo.", text)
    for line in re.findall(r"-m ((?:rdm_solo|studies|benchmarks)\b[^`&\n]*)", text):
        yield shlex.split(FILLED.sub("1", line), comments=True)


@pages
def test_its_commands_are_accepted(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # The pages on a filter, a data set and a callback of one's own ask for these files.
    files = {"filter/soft": "", "dataset/squares": "num_train: 512", "callbacks/mine": "mine: {}"}
    for name, content in files.items():
        path = tmp_path / "own" / f"{name}.yaml"
        path.parent.mkdir(parents=True)
        path.write_text(content)
    accepted: set[tuple[str, ...]] = set()
    for module, *options in commands(page):
        check_is_command(module)
        name = module.removeprefix("rdm_solo.")
        if name in CONFIGS:
            chosen = [o for o in options if not o.startswith(("p=", "max_epochs=", "seed="))]
            if (name, *chosen) not in accepted:
                accepted.add((name, *chosen))
                check_options(CONFIGS[name], options)
        elif name != "plugin":
            for option in options:
                assert option in FLAGS or not option.startswith("--"), (module, option)


def check_is_command(module: str) -> None:
    path = ROOT / Path(*module.split("."))
    if path.is_dir():
        assert (path / "__main__.py").is_file(), module
    else:
        assert "__main__" in path.with_suffix(".py").read_text(), module


def check_options(config: str, options: list[str]) -> None:
    """Compose the config; of a sweep, the config of its first run."""
    if "-m" in options:
        options = [first_value(option) for option in arguments.quote(options, config)]
    arguments.compose(config, options)


def first_value(argument: str) -> str:
    """Return a sweep's argument with its first value alone."""
    if "=" not in argument:
        return argument
    (override,) = OverridesParser.create().parse_overrides([argument])
    if not override.is_sweep_override():
        return argument
    return f"{override.get_key_element()}={next(override.sweep_string_iterator())}"


@pages
def test_files_and_modules_that_it_names_exist(page):
    folders = "rdm_solo|conf|docs|tests|studies|benchmarks"
    for name in re.findall(rf"(?<![/\w])(?:{folders})/[\w./-]*\w", page.read_text()):
        if not re.search(r"[A-Z]{4}|barlow_twins", name):  # a reader's, and an example's
            assert (ROOT / name).exists(), name
    for name in re.findall(r"\brdm_solo(?:\.\w+)+", page.read_text()):
        if not (ROOT / name).exists():  # rdm_solo.train is a command and a module
            pkgutil.resolve_name(name)


@functools.cache
def options() -> set[str]:
    """Return the dotted name of every option in conf/."""

    names: set[str] = set()

    def add(prefix: str, node: object) -> None:
        names.add(prefix)
        if isinstance(node, dict):
            for key, value in node.items():
                add(f"{prefix}.{key}".lstrip("."), value)

    for path in config_folder().rglob("*.yaml"):
        text = path.read_text()
        group = path.relative_to(config_folder()).parts[0]
        if group.endswith(".yaml") or "@package _global_" in text:
            group = ""
        add(group, yaml.safe_load(text))
    return names


@pages
def test_columns_and_options_that_it_names_exist(page):
    kinds = "|".join({name.partition("/")[0] for name in COLUMNS if "/" in name})
    for name in re.findall(rf"`((?:{kinds})/\w+)`", page.read_text()):
        assert name in COLUMNS, name
    sections = {name.partition(".")[0] for name in options() if "." in name}
    for name in re.findall(r"`(\w+\.\w[\w.]*)(?:=[^`]*)?`", page.read_text()):
        if name.partition(".")[0] in sections - {"hydra"}:
            assert name in options(), name


@pytest.mark.long  # names of the docstrings; links of pages are a test of their own
@pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("sphinx", "myst_parser", "furo"))),
    reason="uv sync --group docs brings what builds the site",
)
def test_the_site_builds_without_a_warning(tmp_path):
    from sphinx.cmd.build import build_main

    folders = [ROOT / "docs", tmp_path / "site", "-d", tmp_path / "trees"]
    assert build_main(["-q", "-W", "--keep-going", "-b", "html", *map(str, folders)]) == 0
    rooms = {path.parent.name for path in (ROOT / "rdm_solo").glob("*/__init__.py")}
    pages = {path.stem for path in (tmp_path / "site" / "api").glob("*.html")}
    assert {f"rdm_solo.{room}" for room in rooms} <= pages
