"""The paper's tables and figures, and the commands that run them: ``python -m rdm_solo.paper``."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.resources import files

from rdm_solo.cli.answers import say_anything

__all__ = ["FIGURES", "FIGURE_EPOCHS", "Figure", "Row", "command", "markdown", "preset", "rows"]

# The paper prints no epochs for its figures and for the alignment of C_z and C_+ ("all default
# settings in solo-learn", whose files have 1000). The longest run of its tables stands in.
FIGURE_EPOCHS = 400


@dataclass(frozen=True)
class Row:
    """One number of the paper's tables; ``p``, ``epochs``, ``location`` and ``predictor`` are empty
    where the paper gives none."""

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
    """Every number of the paper's tables, in their order.

    >>> rows()[0]  # doctest: +ELLIPSIS
    Row(table='online_predictors', framework='simsiam', ..., epochs=100, metric='acc1', value=74.0)
    """
    text = (files("rdm_solo.paper") / "tables.csv").read_text(encoding="utf-8")
    return [
        Row(
            table=line["table"],
            framework=line["framework"],
            location=line["location"],
            predictor=line["predictor"],
            p=float(line["p"]) if line["p"] else None,
            dataset=line["dataset"],
            epochs=int(line["epochs"]) if line["epochs"] else None,
            metric=line["metric"],
            value=float(line["value"]),
        )
        for line in csv.DictReader(text.splitlines())
    ]


def preset(row: Row) -> list[str]:
    """The overrides that configure a row's run.

    ImageNet's epochs are the preset's own, since the paper prints none; alignment rows are of each
    method as it is, trained for ``FIGURE_EPOCHS``.

    >>> preset(rows()[0])
    ['experiment=cifar10/simsiam_learnable', 'max_epochs=100']
    >>> preset(next(row for row in rows() if row.p == -0.3))
    ['experiment=cifar10/simsiam_target_pow', 'p=-0.3', 'max_epochs=100']
    """
    overrides = [f"experiment={row.dataset}/{row.framework}{_variant(row)}"]
    if row.p is not None:
        overrides.append(f"p={row.p:g}")
    epochs = FIGURE_EPOCHS if row.table == "alignment_cz_cplus" else row.epochs
    if epochs is not None:
        overrides.append(f"max_epochs={epochs}")
    return overrides


def _variant(row: Row) -> str:
    """The part of a preset's name that says what stands in the predictor's place."""
    if row.framework in ("swav", "dino"):
        return ""
    if row.predictor in ("linear", "nonlinear", ""):
        return "_linear" if row.predictor == "linear" else "_learnable"
    return f"_{row.location}_{row.predictor}"


def command(row: Row) -> str:
    """The command that runs a row.

    >>> command(rows()[-1])
    'python -m rdm_solo.train experiment=cifar100/dino max_epochs=400'
    """
    return _train(preset(row))


def _train(overrides: Iterable[str]) -> str:
    return " ".join(["python -m rdm_solo.train", *overrides])


@dataclass(frozen=True)
class Figure:
    """A figure: its number, its label in the paper's source, what it shows, and its runs."""

    number: int
    label: str
    shows: str
    presets: tuple[tuple[str, ...], ...]


def _runs(dataset: str, *names: str) -> tuple[tuple[str, ...], ...]:
    epochs = f"max_epochs={FIGURE_EPOCHS}"
    return tuple((f"experiment={dataset}/{name}", epochs) for name in names)


def _but(run: tuple[str, ...], *overrides: str) -> tuple[str, ...]:
    return (*run, *overrides)


_FOUR = ("byol_learnable", "simsiam_learnable", "swav", "dino")
_FILTERS = (
    "simsiam_learnable",
    "simsiam_linear",
    "simsiam_online_pow",
    "simsiam_online_log",
    "simsiam_online_log1p",
    "simsiam_online_log1p_sq",
)
_POWERS = (-0.3, -0.5, -0.7, -1)
(_SWAV,), (_DINO,) = _runs("cifar10", "swav"), _runs("cifar10", "dino")
(_VANILLA,), (_SYM,) = _runs("cifar10", "vanilla"), _runs("cifar10", "symsimsiam")

FIGURES = (
    Figure(1, "erank-cifar10", "effective rank of both branches", _runs("cifar10", *_FOUR)),
    Figure(
        2,
        "center-performace",  # the label's own spelling
        "SimSiam, SymSimSiam and the symmetric baseline; the last two also without the last BN, "
        "which by itself keeps the variance up",
        (
            *_runs("cifar10", "simsiam_learnable"),
            _SYM,
            _VANILLA,
            _but(_SYM, "method.last_bn=false"),
            _but(_VANILLA, "method.last_bn=false"),
        ),
    ),
    Figure(3, "alignment", "alignment of both branches' eigenspaces", _runs("cifar10", *_FOUR)),
    Figure(4, "m2", "eigenvalues of both branches and the filter", _runs("cifar10", *_FOUR)),
    Figure(
        5,
        "asymmetric design",
        "optimal predictors of BYOL and SimSiam; SwAV by Sinkhorn iterations; DINO by centring, "
        "sharpening and temperature (the paper prints neither iterations nor temperatures)",
        (
            *_runs("cifar10", "byol_learnable", "simsiam_learnable"),
            *(_but(_SWAV, f"method.kwargs.sk_iters={n}") for n in (1, 2, 3)),
            _but(_DINO, "method.sharpening=false"),
            _but(_DINO, "method.centring=false"),
            *(_but(_DINO, f"method.kwargs.teacher_temperature={t}") for t in (0.04, 0.07)),
        ),
    ),
    Figure(
        6,
        "different_predictors",
        "eigenvalues by filter",
        tuple(
            run
            for dataset in ("cifar10", "cifar100")
            for run in (
                *_runs(dataset, *_FILTERS),
                *(
                    _but(target, f"p={p}")
                    for target in _runs(dataset, "simsiam_target_pow")
                    for p in _POWERS
                ),
            )
        ),
    ),
    Figure(7, "erank-cifar100", "effective rank of both branches", _runs("cifar100", *_FOUR)),
    Figure(8, "m2-cifar100", "eigenvalues and filter", _runs("cifar100", *_FOUR)),
    Figure(
        9,
        "symsimsiam-loss",
        "training loss of SimSiam and SymSimSiam",
        (
            *_runs("cifar10", "simsiam_learnable", "symsimsiam"),
            *_runs("cifar100", "simsiam_learnable", "symsimsiam"),
        ),
    ),
)

_TABLES = {
    "online_predictors": "Online predictors of SimSiam",
    "target_predictors": "Target predictors of SimSiam",
    "imagenet": "ImageNet-1k",
    "byol": "Target predictors of BYOL",
    "cost": "Cost",
    "alignment_cz_cplus": "Eigenspace alignment of C_z and C_+",
}
_DATASETS = {
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "imagenet100": "ImageNet-100",
    "imagenet": "ImageNet-1k",
}
_METHODS = {"simsiam": "SimSiam", "byol": "BYOL", "swav": "SwAV", "dino": "DINO"}
_ONLINE = {"pow": "σ", "log": "log σ", "log1p": "log(1 + σ)", "log1p_sq": "log(1 + σ²)"}
_NUMBERS = {
    "acc1": "{:.2f}",
    "acc5": "{:.2f} (top 5)",
    "seconds_rtx2080ti": "{:.0f} s",
    "gpu_mib": "{:.0f} MiB",
    "alignment": "{:.4f}",
}


def markdown() -> str:
    """Every table row and figure with its command, as ``docs/experiments.md`` has it."""
    return "\n".join(itertools.chain(_table_lines(), _figure_lines())) + "\n"


def _table_lines() -> Iterator[str]:
    everything = rows()
    for table, title in _TABLES.items():
        yield from (
            f"## {title}",
            "",
            "| data | method | in the paper | command |",
            "|---|---|---|---|",
        )
        runs: dict[tuple[str, ...], list[Row]] = {}
        for row in everything:
            if row.table == table:
                runs.setdefault((row.dataset, *_head(row)), []).append(row)
        for same in runs.values():
            row = same[0]
            data, method = _DATASETS[row.dataset], f"{_METHODS[row.framework]}{_described(row)}"
            yield f"| {data} | {method} | {_values(same)} | `{_sweep(same)}` |"
        yield ""


def _head(row: Row) -> list[str]:
    """A row's overrides without its epochs."""
    return [override for override in preset(row) if not override.startswith("max_epochs=")]


def _described(row: Row) -> str:
    if row.predictor == "pow":
        return ", g = σ" if row.location == "online" else f", h = σ^{row.p:g}"
    if row.predictor in _ONLINE:
        return f", g = {_ONLINE[row.predictor]}"
    return f", {row.predictor}" if row.predictor else ""


def _values(same: list[Row]) -> str:
    """The paper's numbers of rows that differ in epochs and metric alone, by epochs."""
    parts = []
    for epochs, group in itertools.groupby(same, key=lambda row: row.epochs):
        numbers = ", ".join(_NUMBERS[row.metric].format(row.value) for row in group)
        parts.append(f"{epochs} ep. {numbers}" if epochs else numbers)
    return "; ".join(parts)


def _sweep(same: list[Row]) -> str:
    """One command for rows that differ in epochs and metric alone."""
    epochs = dict.fromkeys(row.epochs for row in same)
    if len(epochs) == 1:
        return command(same[0])
    values = ",".join(str(value) for value in epochs)
    return _train(["-m", *_head(same[0]), f"max_epochs={values}"])


def _figure_lines() -> Iterator[str]:
    yield from ("## Figures", "", "| figure | shows | command |", "|---|---|---|")
    for figure in FIGURES:
        named = [str(figure.number), figure.shows]
        experiments: dict[tuple[str, ...], list[str]] = {}
        for experiment, *rest in figure.presets:
            experiments.setdefault(tuple(rest), []).append(experiment.partition("=")[2])
        for tail, same in experiments.items():
            sweep = ["-m"] if len(same) > 1 else []
            run = _train([*sweep, f"experiment={','.join(same)}", *tail])
            yield f"| {named[0]} | {named[1]} | `{run}` |"
            named = ["", ""]


if __name__ == "__main__":
    say_anything()
    print(markdown(), end="")
