"""README and docs/: links lead somewhere, Python runs, commands are accepted."""

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

import rdm_solo
from rdm_solo.cli import arguments
from rdm_solo.cli.config_files import config_folder
from rdm_solo.runs.columns import COLUMNS
from rdm_solo.train import sweep

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
for pattern in ("docs/*.md", "benchmarks/*.md", "studies/*/*.md"):
    for path in sorted(ROOT.glob(pattern)):
        if not path.name.startswith("page"):  # the template of a page
            PAGES.append(path)
HOSTS = {"docs.astral.sh", "github.com", "hydra.cc", "openreview.net", "pytorch.org"}
# Commands whose options are Hydra's, with the name of their config.
CONFIGS = {
    "train": "config",
    "linear": "linear",
    "export": "export",
    "preview": "preview",
    "measure": "measure",
}
QUICK = {"++trainer.limit_train_batches": 3, "backbone.kwargs.width": 8}
# A shell variable that a reader sets.
VARIABLE = re.compile(r"\$\{?\w+(\[[^]]*\])?\}?")

pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def prose(text: str) -> str:
    """Return the text without code, in which brackets are not links."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    return re.sub(r"^ {4}.*$|`[^`\n]*`", "", text, flags=re.M)


def anchors(text: str) -> set[str]:
    """Return the names that GitHub gives to the headings of a page."""
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
        target = page
        if parts.path:
            target = (page.parent / parts.path).resolve()
        assert target.is_file(), link
        assert target.is_relative_to(ROOT), link
        if parts.fragment:
            assert parts.fragment in anchors(target.read_text()), link


def blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.M | re.S)


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p)], ids=lambda page: page.name)
@pytest.mark.filterwarnings("error:constrained_layout not applied")
def test_the_python_of_a_page_runs_from_top_to_bottom(page, tmp_path, monkeypatch):
    """Train a smaller network with fewer steps than a page does."""

    def fit(overrides, fit=rdm_solo.fit, **options):
        return fit({**overrides, **QUICK}, **options)

    monkeypatch.setattr(rdm_solo, "fit", fit)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for code in blocks(page):
        exec(compile(code, page.name, "exec"), names)


def commands(page: Path) -> Iterator[list[str]]:
    """Yield the module and options of each command on a page."""
    text = re.sub(r"\\\n\s+", "", page.read_text())
    text = re.sub(r"(?<![\w/-])rdm-solo (?=\w)", "-m rdm_solo.", text)
    for line in re.findall(r"-m ((?:rdm_solo|studies|benchmarks)\b[^`&\n]*)", text):
        yield shlex.split(VARIABLE.sub("1", line), comments=True)


@pages
def test_the_commands_of_a_page_are_accepted(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # Files that the pages on adding a filter, a data set and a callback tell a reader to write.
    files = {"filter/soft": "", "dataset/squares": "num_train: 512", "callbacks/mine": "mine: {}"}
    for name, content in files.items():
        path = tmp_path / "own" / f"{name}.yaml"
        path.parent.mkdir(parents=True)
        path.write_text(content)
    for module, *options in commands(page):
        path = ROOT / module.replace(".", "/")
        if path.is_dir():
            assert (path / "__main__.py").is_file(), module
        else:
            assert "__main__" in path.with_suffix(".py").read_text(), module
        name = module.removeprefix("rdm_solo.")
        if name in CONFIGS:
            if "hydra/sweeper=optuna" in options:
                if importlib.util.find_spec("hydra_plugins.hydra_optuna_sweeper") is None:
                    continue
            elif "-m" in options:
                # Take the first run of the sweep.
                quoted = arguments.quote(options, CONFIGS[name])
                flags = [option for option in quoted if "=" not in option]
                values = [option for option in quoted if "=" in option]
                options = [*flags, *sweep.runs_of(values)[0]]
            arguments.compose(CONFIGS[name], options)


@pages
def test_the_files_and_modules_that_a_page_names_exist(page):
    folders = "rdm_solo|conf|docs|tests|studies|benchmarks"
    for name in re.findall(rf"(?<![/\w])(?:{folders})/[\w./-]*\w", page.read_text()):
        if not re.search(r"[A-Z]{4}|barlow_twins|_build", name):  # placeholders, outputs
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
        group, *_ = path.relative_to(config_folder()).parts
        if group.endswith(".yaml") or "@package _global_" in text:
            group = ""
        add(group, yaml.safe_load(text))
    return names


@pages
def test_the_columns_and_options_that_a_page_names_exist(page):
    kinds = "|".join(name.partition("/")[0] for name in COLUMNS if "/" in name)
    for name in re.findall(rf"`((?:{kinds})/\w+)`", page.read_text()):
        assert name in COLUMNS, name
    sections = {name.partition(".")[0] for name in options() if "." in name}
    for name in re.findall(r"`(\w+\.\w[\w.]*)(?:=[^`]*)?`", page.read_text()):
        if name.partition(".")[0] in sections - {"hydra"}:
            assert name in options(), name
