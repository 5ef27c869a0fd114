"""The paper's tables and figures, and the commands that run them: ``rdm-solo paper``."""

import csv
import itertools
import json
from collections.abc import Sequence
from importlib.resources import files
from typing import Any, NamedTuple

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
    table = []
    for line in _lines("tables.csv"):
        for name in ("p", "epochs", "value"):
            line[name] = json.loads(line[name] or "null")
        table.append(Row(**line))
    return table


def figures() -> list[dict[str, Any]]:
    """Return the paper's figures: what each one ``shows``, and the ``options`` of train."""
    return _lines("figures.csv")


def _lines(name: str) -> list[dict[str, Any]]:
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
    variant = f"_{row.location}_{row.predictor}"
    if row.framework in ("swav", "dino"):  # they have no predictor that a filter could replace
        variant = ""
    elif row.predictor in ("", "nonlinear"):
        variant = "_learnable"
    elif row.predictor == "linear":
        variant = "_linear"
    overrides = [f"experiment={row.dataset}/{row.framework}{variant}"]
    if row.p is not None:
        overrides.append(f"p={row.p:g}")
    epochs = row.epochs
    if row.table == "alignment_cz_cplus":
        epochs = ALIGNMENT_EPOCHS
    if epochs is not None:
        overrides.append(f"max_epochs={epochs}")
    return overrides


_TABLES = {
    "online_predictors": "Online predictors of SimSiam",
    "target_predictors": "Target predictors of SimSiam",
    "imagenet": "ImageNet-1k",
    "byol": "Target predictors of BYOL",
    "cost": "Cost",
    "alignment_cz_cplus": "Eigenspace alignment of C_z and C_+",
}
_NUMBERS = {
    "acc1": "{:.2f} %",
    "acc5": "{:.2f} % (top 5)",
    "seconds_rtx2080ti": "{:.0f} s",
    "gpu_mib": "{:.0f} MiB",
    "alignment": "{:.4f}",
}


def markdown() -> str:
    """Return the paper's numbers and figures with their commands, in Markdown."""
    lines = []
    for table, of_table in itertools.groupby(rows(), lambda row: row.table):
        lines += [f"## {_TABLES[table]}", "", "| in the paper | command |", "|---|---|"]
        settings = itertools.groupby(of_table, lambda row: row[:6])  # all but epochs and number
        for _, group in settings:
            same = list(group)
            numbers = [_NUMBERS[row.metric].format(row.value) for row in same]
            lines.append(f"| {', '.join(numbers)} | `{_command(same)}` |")
        lines.append("")
    lines += ["## Figures", "", "| figure | shows | command |", "|---|---|---|"]
    for line in figures():
        lines.append(f"| {line['figure']} | {line['shows']} | `{_train(line['options'])}` |")
    return "\n".join(lines) + "\n"


def _command(same: Sequence[Row]) -> str:
    """Return the command that trains these rows: a sweep over epochs if they have several."""
    values: dict[str, dict[str, None]] = {}  # an ordered set for each option
    for row in same:
        for option in preset(row):
            name, value = option.split("=")
            values.setdefault(name, {})[value] = None
    options = [f"{name}={','.join(choices)}" for name, choices in values.items()]
    return _train(" ".join(options))


def _train(options: str) -> str:
    if "," in options:
        return f"rdm-solo train -m {options}"
    return f"rdm-solo train {options}"
