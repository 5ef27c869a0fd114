"""A page of panels at Weights & Biases: ``python -m rdm_solo.dashboard --project rdm_solo``."""

import argparse
import importlib.util
from collections.abc import Sequence
from typing import Any

from rdm_solo import cli
from rdm_solo.loggers import charts
from rdm_solo.messages import UserError
from rdm_solo.runs import columns

NAME = "Rank differential"
# Beside the runs' names, which have method and filter.
PINNED = ["config:p", "config:seed", "summary:val/knn_acc1", "summary:erank/gap"]


def build(project: str, entity: str, sweep: str | None = None) -> Any:
    """The workspace, not saved yet; ``sweep`` shows the runs of that sweep's folder alone."""
    import wandb_workspaces.expr as expr
    import wandb_workspaces.reports.v2 as wr
    import wandb_workspaces.workspaces as ws

    over_epochs = [
        wr.LinePlot(title=title, x="epoch", y=[column.name for column in shown], title_x="epoch")
        for title, shown in columns.charts().items()
    ]
    against_p = [  # a point for each run
        wr.ScatterPlot(
            title=f"{column.words} against p", x=wr.Config("p"), y=wr.SummaryMetric(column.name)
        )
        for column in columns.compared()
    ]
    pictures = wr.MediaBrowser(title="Spectra of an epoch", media_keys=[charts.PICTURE])
    spectra = [*(_chart(name, title) for name, title in charts.CHARTS.items()), pictures]
    sections = {"Over epochs": over_epochs, "Against p": against_p, "Spectra": spectra}
    return ws.Workspace(
        entity=entity,
        project=project,
        name=NAME if sweep is None else f"{NAME}, {sweep}",
        sections=[ws.Section(name=n, panels=p, is_open=True) for n, p in sections.items()],
        settings=ws.WorkspaceSettings(x_axis="epoch", max_runs=30),
        runset_settings=ws.RunsetSettings(
            filters=expr.And(expr.Config("sweep_folder") == sweep) if sweep else "",
            pinned_columns=PINNED,
        ),
    )


def _chart(name: str, title: str) -> Any:
    """A panel of what :func:`rdm_solo.loggers.charts.draw` logs."""
    import wandb_workspaces.reports.v2 as wr

    chart = wr.CustomChart.from_table(
        f"charts/{name}_table",
        chart_fields={"step": "step", "lineKey": "lineKey", "lineVal": "lineVal"},
        chart_strings={"title": title, "xname": "index i"},
    )
    chart.chart_name = "wandb/lineseries/v0"
    return chart


def create(project: str, entity: str | None, sweep: str | None) -> str:
    """Save the dashboard at the server; its address."""
    import wandb

    from rdm_solo.loggers.server import obstacle

    if reason := obstacle():
        raise UserError(f"the dashboard needs Weights & Biases: {reason}")
    try:
        entity = entity or wandb.Api(timeout=20).default_entity
        url = str(build(project, entity, sweep).save().url) if entity else ""
    except Exception as error:  # whatever the service or its client raises
        raise UserError(
            f"Weights & Biases refuses the dashboard ({error}); is there a project {project!r} of "
            f"{entity or 'this login'} yet? The first run with logger=wandb makes it."
        ) from error
    if not url:
        raise UserError("--entity is missing: this login has no default user or team")
    return url


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        "python -m rdm_solo.dashboard",
        description="Make a page of panels at Weights & Biases, of all runs in a project.",
    )
    parser.add_argument(
        "--project", default="rdm_solo", help="the project, as logger.wandb.project"
    )
    parser.add_argument("--entity", help="a user or team; your own by default")
    parser.add_argument("--sweep", metavar="NAME", help="the runs of that sweep's folder alone")
    given = parser.parse_args(arguments)
    with cli.errors_as_sentences():
        if importlib.util.find_spec("wandb_workspaces") is None:
            raise UserError(
                "the dashboard needs the package wandb-workspaces, which is not installed: "
                "pip install wandb-workspaces"
            )
        print(create(given.project, given.entity, given.sweep))
