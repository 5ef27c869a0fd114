"""The dashboard, as a server is sent it, against what is really logged."""

from __future__ import annotations

import contextlib
import io

import numpy as np
import pytest
from support.fake_wandb import Server

from rdm_solo.loggers import charts, dashboard
from rdm_solo.runs.columns import COLUMNS

pytest.importorskip("wandb_workspaces")

LOGGED = {*COLUMNS, "linear/top1"}


@pytest.fixture(scope="module")
def saved():
    """What a server is sent, and the address that is printed."""
    import wandb

    server, printed = Server(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
        for name, value in server.environment().items():
            patch.setenv(name, value)
        wandb.teardown()  # W&B reads its environment once
        dashboard.main(["--project", "mine", "--entity", "us", "--sweep", "ps"])
        wandb.teardown()
    server.close()
    (view,) = server.views
    return view, printed.getvalue(), server.url


@pytest.fixture(scope="module")
def written(saved):
    return saved[0]["spec"]


def panels(spec, kind):
    sections = spec["section"]["panelBankConfig"]["sections"]
    return [p["config"] for s in sections for p in s["panels"] if p["viewType"] == kind]


def test_its_curves_are_columns_over_epochs(written):
    curves = panels(written, "Run History Line Plot")
    assert {curve["xAxis"] for curve in curves} == {"epoch"}
    drawn = {name for curve in curves for name in curve["metrics"]}
    assert drawn == {column.name for column in COLUMNS.values() if column.chart}
    assert drawn >= {"erank/online", "erank/target", "erank/gap", "val/knn_acc1", "train/loss"}


def test_its_points_are_final_values_against_p(written):
    points = panels(written, "Scatter Plot")
    assert {point["xAxis"] for point in points} == {"config:p.value"}
    drawn = {point["yAxis"] for point in points}
    assert drawn <= {f"summary:{name}" for name in LOGGED}
    assert drawn >= {"summary:val/knn_acc1", "summary:erank/gap"}


def test_its_charts_and_pictures_are_those_of_a_run(written):
    tables = charts.draw({1: {name: np.ones(4) for name in charts.CHARTS}})
    shown = panels(written, "Vega2")
    asked = [
        chart["userQuery"]["queryFields"][0]["fields"][0]["args"][0]["value"] for chart in shown
    ]
    assert asked == [f"{key}_table" for key in tables]
    for chart, made in zip(shown, tables.values()):
        assert chart["panelDefId"] == made.spec.spec_name
        assert chart["fieldSettings"] == made.spec.fields
        assert chart["stringSettings"] == made.spec.string_fields
    assert panels(written, "Media Browser")[0]["mediaKeys"] == [charts.PICTURE]


def test_a_sweep_is_filtered_by_the_key_that_its_runs_have(written):
    (runs,) = written["section"]["runSets"]
    (kept,) = runs["filters"]["filters"]
    assert kept["key"] == {"section": "config", "name": "sweep_folder"}
    assert kept["value"] == "ps"


def test_it_is_created_at_the_server(saved):
    view, printed, url = saved
    assert (view["entityName"], view["projectName"]) == ("us", "mine")
    assert view["displayName"] == f"{dashboard.NAME}, ps"
    assert f"{url}/us/mine?nw=" in printed


def test_what_is_missing_is_said(server, monkeypatch, tmp_path, capsys):
    import wandb

    def said() -> str:
        wandb.teardown()
        with pytest.raises(SystemExit):
            dashboard.main([])
        return capsys.readouterr().err

    server.close()
    assert "cannot be reached: " in said()
    monkeypatch.delenv("WANDB_API_KEY")
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    assert "no login (run `wandb login` once" in said()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "needs the package wandb-workspaces" in said()
