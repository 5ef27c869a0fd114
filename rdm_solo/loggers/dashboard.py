"""Create a W&B workspace: ``rdm-solo dashboard --project rdm_solo``."""

import argparse
import importlib
from collections.abc import Sequence
from typing import Any

from rdm_solo.ground.errors import UserError
from rdm_solo.ground.packages import check_installed
from rdm_solo.loggers import charts
from rdm_solo.runs import columns

NAME = "Rank differential"
# Columns pinned next to the run names, which contain method and filter.
PINNED_COLUMNS = ["config:p", "config:seed", "summary:val/knn_acc1", "summary:erank/gap"]


def build(project: str, entity: str, sweep: str | None = None) -> Any:
    """Build the workspace without saving it; ``sweep`` restricts it to the runs of one sweep."""
    import wandb_workspaces.expr as expr
    import wandb_workspaces.workspaces as ws

    wr = _panels()
    over_epochs = [
        wr.LinePlot(title=title, x="epoch", y=[column.name for column in group], title_x="epoch")
        for title, group in columns.charts().items()
    ]
    against_p = [  # one point per run
        wr.ScatterPlot(
            title=f"{column.label} against p", x=wr.Config("p"), y=wr.SummaryMetric(column.name)
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
            pinned_columns=PINNED_COLUMNS,
        ),
    )


def _panels() -> Any:
    """Return the module of panels, whose classes its type annotations do not export."""
    return importlib.import_module("wandb_workspaces.reports.v2")


def _chart(name: str, title: str) -> Any:
    """Return the panel of a chart that :func:`rdm_solo.loggers.charts.draw` logs."""
    chart = _panels().CustomChart.from_table(
        f"charts/{name}_table",
        chart_fields={"step": "step", "lineKey": "lineKey", "lineVal": "lineVal"},
        chart_strings={"title": title, "xname": "index i"},
    )
    chart.chart_name = "wandb/lineseries/v0"
    return chart


def main(arguments: Sequence[str] | None = None) -> None:
    """Save the workspace on the server and print its URL."""
    parser = argparse.ArgumentParser(
        "rdm-solo dashboard",
        description="Create a Weights & Biases workspace for all runs of a project.",
    )
    parser.add_argument("--project", default="rdm_solo", help="W&B project (logger.wandb.project)")
    parser.add_argument("--entity", help="W&B user or team (default: your own)")
    parser.add_argument("--sweep", metavar="NAME", help="show only runs in the sweep folder NAME")
    options = parser.parse_args(arguments)
    check_installed("the dashboard", "wandb", "wandb_workspaces")
    import wandb

    try:
        entity = options.entity or wandb.Api(timeout=20).default_entity
        print(build(options.project, str(entity), options.sweep).save().url)
    except Exception as error:  # a service or its client can raise anything
        raise UserError(
            f"the dashboard could not be saved ({error}). It needs a login (wandb login) and "
            f"the project {options.project!r}, which the first run with logger=wandb creates."
        ) from error
