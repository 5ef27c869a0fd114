"""Changes one operator or constant at a time and reports which changes the tests notice.

    uv run python tests/mutation.py --seed 0 --count 100

Each change is made in a temporary copy of the checkout, where the tests of the module's room run
until the first failure. A change that no test notices is named with its file and line: either it
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
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).resolve().parent.parent
RULES = "rdm_solo/collapse/rules.py"
ALARM = "rdm_solo/collapse/alarm.py"
MODULES = ("rdm_solo/filters", "rdm_solo/spectra", "rdm_solo/theory", "rdm_solo/data", RULES, ALARM)
COPIED = ("rdm_solo", "tests", "conf", "pyproject.toml", "README.md", "docs", "studies")
# Modules with tests in another room, or with one file of tests that is to run first.
TESTS = {
    RULES: ["tests/collapse/test_rules.py"],
    ALARM: ["tests/callbacks/test_collapse_watch.py"],
}

SWAPPED: dict[type[ast.AST], tuple[type[ast.AST], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.Add: (ast.Sub,),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Div,),
    ast.Div: (ast.Mult,),
    ast.FloorDiv: (ast.Mult,),
    ast.Mod: (ast.Mult,),
    ast.Pow: (ast.Mult,),
    ast.And: (ast.Or,),
    ast.Or: (ast.And,),
}
NAMES = {"min": "max", "clamp_min": "clamp_max", "amin": "amax", "minimum": "maximum"}
NAMES |= {right: left for left, right in NAMES.items()}


@dataclass(frozen=True)
class Change:
    """A module in which one field of one node changes."""

    module: Path
    tree: ast.Module
    node: ast.AST
    field: str
    value: object

    def __str__(self) -> str:
        place = f"{self.module.relative_to(ROOT)}:{self.node.lineno}"
        return f"{place}: {ast.unparse(self.node)}  ->  {self.applied_to(self.node)}"

    def applied_to(self, part: ast.AST) -> str:
        """Return the source of the node, or of the tree that it is in, with the change."""
        before = getattr(self.node, self.field)
        setattr(self.node, self.field, self.value)
        text = ast.unparse(part)
        setattr(self.node, self.field, before)
        return text


def variants(node: ast.AST) -> Iterator[tuple[str, object]]:
    """Yield a field and its new value for each change in the node itself."""
    if isinstance(node, ast.Compare):
        for place, operator in enumerate(node.ops):
            for other in SWAPPED.get(type(operator), ()):
                yield "ops", [*node.ops[:place], other(), *node.ops[place + 1 :]]
    elif isinstance(node, (ast.BinOp, ast.AugAssign, ast.BoolOp)):
        for other in SWAPPED.get(type(node.op), ()):
            yield "op", other()
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.Not)):
        yield "operand", ast.UnaryOp(node.op, node.operand)  # twice is not at all
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield "value", not node.value
    elif isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        for value in sorted({node.value + 1, node.value - 1, node.value * 2} - {node.value}):
            yield "value", value
    elif isinstance(node, ast.Name) and node.id in ("min", "max"):
        yield "id", NAMES[node.id]
    elif isinstance(node, ast.Attribute) and node.attr in NAMES:
        yield "attr", NAMES[node.attr]


def mutable(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes that can change a result; messages and decorators, for example, cannot."""
    decorators = tree.decorator_list if isinstance(tree, ast.ClassDef) else []
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, (ast.JoinedStr, ast.Raise)) or child in decorators:
            continue
        if isinstance(child, ast.keyword) and child.arg == "non_blocking":
            continue
        if isinstance(child, ast.Assign) and getattr(child.targets[0], "id", "") == "__all__":
            continue
        yield child
        yield from mutable(child)


def changes(module: Path) -> list[list[Change]]:
    """Return the changes that can be made to a module, one list for each place."""
    tree = ast.parse(module.read_text())
    places = ([Change(module, tree, node, *v) for v in variants(node)] for node in mutable(tree))
    return [place for place in places if place]


def tests_of(module: Path) -> list[str]:
    """Return its room's tests and doctests; those that start processes come last."""
    name = module.relative_to(ROOT).as_posix()
    room = module.parent.name
    files = sorted(
        (ROOT / "tests" / room).glob("test_*.py"), key=lambda file: "distributed" in file.name
    )
    room_tests = [str(file.relative_to(ROOT)) for file in files]
    return [*TESTS.get(name, []), f"rdm_solo/{room}", *room_tests]


def run(folder: Path, tests: Sequence[str], limit: float) -> str:
    """Return ``survived`` if the tests pass, otherwise ``caught`` or ``timeout``."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment, timeout=limit, capture_output=True, text=True
        )
    except subprocess.TimeoutExpired:
        return "timeout"
    if done.returncode not in (0, 1, 2):  # 1: a test failed, 2: a module cannot be imported
        raise SystemExit(f"pytest itself failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return "caught" if done.returncode else "survived"


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, default=0, help="of the choice of changes (0)")
    parser.add_argument("--count", type=int, default=100, help="how many changes (100)")
    parser.add_argument("--modules", nargs="+", default=MODULES, help="files or folders")
    parser.add_argument("--limit", type=float, default=300, help="seconds of tests a change (300)")
    parser.add_argument("--jobs", type=int, default=2, help="changes tried at once (2)")
    parser.add_argument("--least", type=float, default=0, help="exit 1 below this share noticed")
    options = parser.parse_args(argv)
    paths = [ROOT / name for name in options.modules]
    files = [f for path in paths for f in (sorted(path.rglob("*.py")) if path.is_dir() else [path])]
    draw = random.Random(options.seed)
    places = [place for file in files for place in changes(file)]
    chosen = [draw.choice(place) for place in draw.sample(places, min(options.count, len(places)))]
    sources = [change.applied_to(change.tree) for change in chosen]
    survived = []
    with tempfile.TemporaryDirectory() as temporary, ThreadPoolExecutor(options.jobs) as pool:
        folders: SimpleQueue[Path] = SimpleQueue()  # unchanged copies of the checkout
        for number in range(options.jobs):
            folder = Path(temporary, str(number))
            folder.mkdir()
            for name in COPIED:
                copy_path = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
                copy_path(ROOT / name, folder / name)
            folders.put(folder)
        for tests in sorted({tuple(tests_of(change.module)) for change in chosen}):
            if run(Path(temporary, "0"), tests, options.limit) != "survived":
                raise SystemExit(f"without any change these tests fail: {' '.join(tests)}")

        def attempt(change: Change, source: str) -> str:
            folder = folders.get()
            file = folder / change.module.relative_to(ROOT)
            file.write_text(source)
            result = run(folder, tests_of(change.module), options.limit)
            file.write_bytes(change.module.read_bytes())
            folders.put(folder)
            return result

        for change, result in zip(chosen, pool.map(attempt, chosen, sources)):
            print(f"{result:<9} {change}", flush=True)
            survived += [change] if result == "survived" else []
    noticed = len(chosen) - len(survived)
    print(f"{noticed} of {len(chosen)} changes noticed ({noticed / len(chosen):.0%}); not noticed:")
    print(*(survived or ["none"]), sep="\n")
    sys.exit(noticed < options.least * len(chosen))


if __name__ == "__main__":
    main()
