"""Change one operator or constant at a time and report which changes the tests notice.

    uv run python tests/mutation.py --seed 0 --count 100

Each change is made in a temporary copy of the checkout, where the tests of the module's room run
until the first failure. A change that no test notices is printed with its file and line: either it
changes nothing that matters, or a test is missing.
"""

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
from ast import (
    Add,
    And,
    Div,
    Eq,
    FloorDiv,
    Gt,
    GtE,
    In,
    Is,
    IsNot,
    Lt,
    LtE,
    Mod,
    Mult,
    NotEq,
    NotIn,
    Or,
    Pow,
    Sub,
)
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ALARM = "rdm_solo/collapse/alarm.py"
MODULES = [
    "rdm_solo/filters",
    "rdm_solo/spectra",
    "rdm_solo/theory",
    "rdm_solo/data",
    "rdm_solo/collapse/rules.py",
    ALARM,
]
COPIED = ["rdm_solo", "tests", "conf", "docs", "studies", "pyproject.toml", "README.md"]
# Modules that are tested in another room.
TESTS = {ALARM: "tests/callbacks/test_collapse_watch.py"}
SECONDS = 300  # for the tests of one change
AT_ONCE = 2  # changes

SWAPPED = {
    Lt: [LtE, GtE],
    LtE: [Lt, Gt],
    Gt: [GtE, LtE],
    GtE: [Gt, Lt],
    Eq: [NotEq],
    NotEq: [Eq],
    Is: [IsNot],
    IsNot: [Is],
    In: [NotIn],
    NotIn: [In],
    Add: [Sub],
    Sub: [Add],
    Mult: [Div],
    Div: [Mult],
    FloorDiv: [Mult],
    Mod: [Mult],
    Pow: [Mult],
    And: [Or],
    Or: [And],
}
OPPOSITES = {
    "min": "max",
    "max": "min",
    "clamp_min": "clamp_max",
    "clamp_max": "clamp_min",
    "amin": "amax",
    "amax": "amin",
    "minimum": "maximum",
    "maximum": "minimum",
}


@dataclass
class Change:
    """A module in which one field of one node gets another value."""

    module: Path
    tree: ast.Module
    node: ast.AST
    field: str
    value: object

    def __str__(self) -> str:
        place = f"{self.module.relative_to(ROOT)}:{self.node.lineno}"
        return f"{place}: {ast.unparse(self.node)}  ->  {self.source(self.node)}"

    def source(self, part: ast.AST) -> str:
        """Return the source of the node, or of the tree that it is in, with the change."""
        before = getattr(self.node, self.field)
        setattr(self.node, self.field, self.value)
        text = ast.unparse(part)
        setattr(self.node, self.field, before)
        return text


def variants(node: ast.AST) -> tuple[str, list]:
    """Return a field of the node, and the values that it may get instead of its own."""
    match node:
        case ast.Compare(ops=[first, *others]):
            return "ops", [[other(), *others] for other in SWAPPED.get(type(first), [])]
        case ast.BinOp(op=op) | ast.AugAssign(op=op) | ast.BoolOp(op=op):
            return "op", [other() for other in SWAPPED.get(type(op), [])]
        case ast.UnaryOp(op=ast.USub() | ast.Not()):
            return "operand", [ast.UnaryOp(node.op, node.operand)]  # applied twice: without it
        case ast.Constant(value=bool(value)):
            return "value", [not value]
        case ast.Constant(value=int(value) | float(value)):
            values = {value + 1, value - 1, value * 2}
            return "value", sorted(values - {value})
        case ast.Name(id=name) if name in OPPOSITES:
            return "id", [OPPOSITES[name]]
        case ast.Attribute(attr=name) if name in OPPOSITES:
            return "attr", [OPPOSITES[name]]
    return "", []


def mutable(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes that can change a result, unlike those in messages and decorators."""
    decorators = getattr(tree, "decorator_list", [])
    for child in ast.iter_child_nodes(tree):
        match child:
            case ast.JoinedStr() | ast.Raise() | ast.keyword(arg="non_blocking"):
                continue
            case ast.Assign(targets=[ast.Name(id="__all__")]):
                continue
        if child not in decorators:
            yield child
            yield from mutable(child)


def places(module: Path) -> Iterator[list[Change]]:
    """Yield the possible changes of each node of a module."""
    tree = ast.parse(module.read_text())
    for node in mutable(tree):
        field, values = variants(node)
        if values:
            yield [Change(module, tree, node, field, value) for value in values]


def outcome(module: Path, source: str) -> str:
    """Return ``survived`` if the room's tests pass, otherwise ``caught`` or ``timeout``."""
    room = module.parent.name
    name = module.relative_to(ROOT)
    tests = TESTS.get(name.as_posix(), f"tests/{room}")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for part in COPIED:
            copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copy
            copy(ROOT / part, folder / part)
        (folder / name).write_text(source)
        pytest = ["-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
        command = [sys.executable, *pytest, f"rdm_solo/{room}", tests]
        environment = {**os.environ, "PYTHONPATH": temporary}
        pipe = {"capture_output": True, "text": True}
        try:
            process = subprocess.run(command, cwd=folder, env=environment, timeout=SECONDS, **pipe)
        except subprocess.TimeoutExpired:
            return "timeout"
    if process.returncode not in (0, 1, 2):  # 1: a test failed, 2: a module cannot be imported
        raise SystemExit(f"pytest itself failed:\n{process.stdout[-2000:]}{process.stderr[-2000:]}")
    return "caught" if process.returncode else "survived"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, default=0, help="seed of the choice of changes (0)")
    parser.add_argument("--count", type=int, default=100, help="how many changes (100)")
    parser.add_argument("--modules", nargs="+", default=MODULES, help="files or folders")
    parser.add_argument("--least", type=float, default=0, help="exit 1 below this share noticed")
    options = parser.parse_args()
    candidates = []
    for name in options.modules:
        path = ROOT / name
        for file in sorted(path.rglob("*.py")) or [path]:
            candidates += places(file)
    draw = random.Random(options.seed)
    drawn = draw.sample(candidates, min(options.count, len(candidates)))
    changes = [draw.choice(place) for place in drawn]

    one_per_room = {change.module.parent: change.module for change in changes}
    for room, module in one_per_room.items():
        if outcome(module, module.read_text()) != "survived":
            raise SystemExit(f"the tests of {room.name} fail without any change")

    modules = [change.module for change in changes]
    sources = [change.source(change.tree) for change in changes]
    noticed = 0
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for change, result in zip(changes, pool.map(outcome, modules, sources)):
            print(f"{result:<9} {change}", flush=True)
            noticed += result != "survived"
    print(f"{noticed} of {len(changes)} changes noticed ({noticed / len(changes):.0%})")
    sys.exit(noticed < options.least * len(changes))


if __name__ == "__main__":
    main()
