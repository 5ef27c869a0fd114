"""The dashboard, as a server would be sent it, against what is really logged."""

from types import SimpleNamespace

import numpy as np
import pytest

from rdm_solo.ground.errors import UserError
from rdm_solo.loggers import charts, dashboard
from rdm_solo.runs.columns import COLUMNS

workspaces = pytest.importorskip("wandb_workspaces.workspaces")

LOGGED = {*COLUMNS, "linear/top1"}


@pytest.fixture(scope="module")
def view():
    return dashboard.build("mine", "us", "ps")._to_model().model_dump(by_alias=True)


def panels(view, kind):
    sections = view["spec"]["section"]["panelBankConfig"]["sections"]
    return [p["config"] for s in sections for p in s["panels"] if p["viewType"] == kind]


def test_its_curves_are_columns_over_epochs(view):
    curves = panels(view, "Run History Line Plot")
    assert {curve["xAxis"] for curve in curves} == {"epoch"}
    drawn = {name for curve in curves for name in curve["metrics"]}
    assert drawn == {column.name for column in COLUMNS.values() if column.chart}
    assert drawn >= {"erank/online", "erank/target", "erank/gap", "val/knn_acc1", "train/loss"}


def test_its_points_are_final_values_against_p(view):
    points = panels(view, "Scatter Plot")
    assert {point["xAxis"] for point in points} == {"config:p.value"}
    drawn = {point["yAxis"] for point in points}
    assert drawn <= {f"summary:{name}" for name in LOGGED}
    assert drawn >= {"summary:val/knn_acc1", "summary:erank/gap"}


def test_its_charts_and_pictures_are_those_of_a_run(view):
    tables = charts.draw({1: {name: np.ones(4) for name in charts.CHARTS}})
    drawn = panels(view, "Vega2")
    assert len(drawn) == len(tables)
    for chart, (key, table) in zip(drawn, tables.items()):
        (query,) = chart["userQuery"]["queryFields"][0]["fields"][0]["args"][:1]
        assert query["value"] == f"{key}_table"
        assert chart["panelDefId"] == table.spec.spec_name
        assert chart["fieldSettings"] == table.spec.fields
        assert chart["stringSettings"] == table.spec.string_fields
    assert panels(view, "Media Browser")[0]["mediaKeys"] == [charts.PICTURE]


def test_a_sweep_is_filtered_by_the_key_that_its_runs_have(view):
    (runs,) = view["spec"]["section"]["runSets"]
    (kept,) = runs["filters"]["filters"]
    assert kept["key"] == {"section": "config", "name": "sweep_folder"}
    assert kept["value"] == "ps"


def test_the_command_saves_it_and_prints_its_address(monkeypatch, capsys):
    saved = []

    def save(workspace):
        saved.append((workspace.entity, workspace.project, workspace.name))
        return SimpleNamespace(url="https://wandb.ai/us/mine?nw=1")

    monkeypatch.setattr(workspaces.Workspace, "save", save)
    dashboard.main(["--project", "mine", "--entity", "us", "--sweep", "ps"])
    assert saved == [("us", "mine", f"{dashboard.NAME}, ps")]
    assert capsys.readouterr().out == "https://wandb.ai/us/mine?nw=1\n"
    monkeypatch.setattr(workspaces.Workspace, "save", lambda _: 1 / 0)
    with pytest.raises(UserError, match="needs a login"):
        dashboard.main(["--project", "mine", "--entity", "us"])
