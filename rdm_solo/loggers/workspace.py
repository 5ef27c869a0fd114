"""Create a W&B workspace: ``rdm-solo dashboard --project rdm_solo``."""

import argparse
from collections.abc import Sequence
from typing import Any

from rdm_solo.ground.errors import UserError
from rdm_solo.ground.packages import check_installed
from rdm_solo.loggers.run_logger import FIRST_CHARTS, VERDICT
from rdm_solo.runs import columns

NAME = "Rank differential"


def build(project: str, entity: str, sweep: str | None = None) -> Any:
    """Build the workspace without saving it; ``sweep`` restricts it to the runs of one sweep.

    Its sections show the health of each run and the columns' charts. W&B itself adds a panel for
    each scalar, histogram and picture, in a section for each prefix such as ``erank``.
    """
    import wandb_workspaces.expr as expr
    import wandb_workspaces.workspaces as ws
    from wandb_workspaces.reports.v2.interface import Config, LinePlot, ScatterPlot, SummaryMetric

    health: list[Any] = [
        LinePlot(x="epoch", y=[name]) for name in [*FIRST_CHARTS.values(), VERDICT]
    ]
    over_epochs: list[Any] = []
    for title, group in columns.charts().items():
        names: list[Any] = [column.name for column in group]
        over_epochs.append(LinePlot(title=title, x="epoch", y=names))
    against_p: list[Any] = []  # one point per run
    for column in columns.compared():
        title = f"{column.label} against p"
        value = SummaryMetric(column.name)
        against_p.append(ScatterPlot(title=title, x=Config("p"), y=value))
    name = NAME
    filters: Any = ""
    if sweep is not None:
        name += f", {sweep}"
        filters = expr.And(expr.Config("sweep_folder") == sweep)
    return ws.Workspace(
        entity=entity,
        project=project,
        name=name,
        sections=[
            ws.Section(name="Health", panels=health, is_open=True),
            ws.Section(name="Over epochs", panels=over_epochs, is_open=True),
            ws.Section(name="Against p", panels=against_p, is_open=True),
        ],
        settings=ws.WorkspaceSettings(x_axis="epoch", max_runs=30),
        runset_settings=ws.RunsetSettings(filters=filters),
        auto_generate_panels=True,
    )


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
        entity = options.entity or wandb.Api().default_entity
        print(build(options.project, str(entity), options.sweep).save().url)
    except Exception as error:  # a service or its client can raise anything
        raise UserError(
            f"the dashboard could not be saved ({error}). It needs a login (wandb login) and "
            f"the project {options.project!r}, which the first run with logger=wandb creates."
        ) from error
