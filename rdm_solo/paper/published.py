"""The paper's tables and figures, and the commands that run them: ``rdm-solo paper``."""

import csv
import itertools
from collections.abc import Iterable, Iterator
from importlib.resources import files
from typing import Any, NamedTuple

from rdm_solo.methods.descriptions import METHODS

# The paper states none for the alignment of C_z and C_+, so its longest runs' are used.
ALIGNMENT_EPOCHS = 400


class Row(NamedTuple):
    """One number of the paper's tables; fields that the paper leaves out are empty or None."""

    table: str
    framework: str
    location: str
    predictor: str
    p: float | None
    dataset: str
    epochs: int | None
    metric: str
    value: float


def rows() -> list[Row]:
    """Return every number of the paper's tables, in their order.

    >>> rows()[0]  # doctest: +ELLIPSIS
    Row(table='online_predictors', framework='simsiam', ..., epochs=100, metric='acc1', value=74.0)
    """
    lines: list[dict[str, Any]] = [*_lines("tables.csv")]
    for line in lines:
        line["p"] = float(line["p"]) if line["p"] else None
        line["epochs"] = int(line["epochs"]) if line["epochs"] else None
        line["value"] = float(line["value"])
    return [Row(**line) for line in lines]


def figures() -> list[dict[str, str]]:
    """Return the paper's figures: what each one ``shows``, and the ``options`` of train."""
    return _lines("figures.csv")


def _lines(name: str) -> list[dict[str, str]]:
    text = (files("rdm_solo.paper") / name).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


def preset(row: Row) -> list[str]:
    """Return the overrides that configure a row's run.

    The paper states no epochs for ImageNet, so the preset's are used.

    >>> preset(rows()[0])
    ['experiment=cifar10/simsiam_learnable', 'max_epochs=100']
    >>> preset(next(row for row in rows() if row.p == -0.3))
    ['experiment=cifar10/simsiam_target_pow', 'p=-0.3', 'max_epochs=100']
    """
    overrides = [f"experiment={row.dataset}/{row.framework}{_variant(row)}"]
    if row.p is not None:
        overrides.append(f"p={row.p:g}")
    epochs = ALIGNMENT_EPOCHS if row.table == "alignment_cz_cplus" else row.epochs
    if epochs is not None:
        overrides.append(f"max_epochs={epochs}")
    return overrides


def _variant(row: Row) -> str:
    """Return the part of a preset's name that names the predictor or filter."""
    if row.framework in ("swav", "dino"):
        return ""
    if row.predictor in ("linear", "nonlinear", ""):
        return "_linear" if row.predictor == "linear" else "_learnable"
    return f"_{row.location}_{row.predictor}"


_TABLES = {
    "online_predictors": "Online predictors of SimSiam",
    "target_predictors": "Target predictors of SimSiam",
    "imagenet": "ImageNet-1k",
    "byol": "Target predictors of BYOL",
    "cost": "Cost",
    "alignment_cz_cplus": "Eigenspace alignment of C_z and C_+",
}
_DATASETS = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}
_DATASETS |= {"imagenet100": "ImageNet-100", "imagenet": "ImageNet-1k"}
_ONLINE = {"pow": "σ", "log": "log σ", "log1p": "log(1 + σ)", "log1p_sq": "log(1 + σ²)"}
_NUMBERS = {
    "acc1": "{:.2f}",
    "acc5": "{:.2f} (top 5)",
    "seconds_rtx2080ti": "{:.0f} s",
    "gpu_mib": "{:.0f} MiB",
    "alignment": "{:.4f}",
}


def markdown() -> str:
    """Return every table row and figure with its command, in Markdown."""
    return "\n".join(_lines_of_markdown()) + "\n"


def _lines_of_markdown() -> Iterator[str]:
    for table, of_table in itertools.groupby(rows(), key=lambda row: row.table):
        yield from (f"## {_TABLES[table]}", "")
        yield from ("| data | method | in the paper | command |", "|---|---|---|---|")
        for (data, method), same in itertools.groupby(of_table, key=_data_and_method):
            runs = list(same)
            yield f"| {data} | {method} | {_numbers(runs)} | `{_command(map(preset, runs))}` |"
        yield ""
    yield from ("## Figures", "", "| figure | shows | command |", "|---|---|---|")
    for line in figures():
        command = _command([line["options"].split()])
        yield f"| {line['figure']} | {line['shows']} | `{command}` |"


def _data_and_method(row: Row) -> tuple[str, str]:
    method = METHODS[row.framework].label
    if row.location == "target":
        method += f", h = σ^{row.p:g}"
    elif row.predictor in _ONLINE:
        method += f", g = {_ONLINE[row.predictor]}"
    elif row.predictor:
        method += f", {row.predictor}"
    return _DATASETS[row.dataset], method


def _numbers(runs: list[Row]) -> str:
    """Format the numbers of rows that differ only in epochs and metric."""
    parts = []
    for epochs, group in itertools.groupby(runs, key=lambda row: row.epochs):
        numbers = ", ".join(_NUMBERS[row.metric].format(row.value) for row in group)
        parts.append(f"{epochs} ep. {numbers}" if epochs else numbers)
    return "; ".join(parts)


def _command(runs: Iterable[list[str]]) -> str:
    """Return one command for all runs; if their options differ, it is a sweep."""
    values: dict[str, list[str]] = {}
    for option in dict.fromkeys(itertools.chain(*runs)):
        name, _, value = option.partition("=")
        values.setdefault(name, []).append(value)
    options = " ".join(f"{name}={','.join(choices)}" for name, choices in values.items())
    return f"rdm-solo train {'-m ' if ',' in options else ''}{options}"
