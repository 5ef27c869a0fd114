"""The dashboard as it would be sent to a server."""

from types import SimpleNamespace

import pytest

from rdm_solo.ground.errors import UserError
from rdm_solo.loggers import workspace
from rdm_solo.loggers.run_logger import FIRST_CHARTS, VERDICT
from rdm_solo.runs.columns import COLUMNS, compared

workspaces = pytest.importorskip("wandb_workspaces.workspaces")


def test_all_charts_are_drawn_over_epochs_and_final_values_of_the_sweep_against_p():
    model = workspace.build("mine", "us", sweep="ps")._to_model()
    view = model.model_dump(by_alias=True)["spec"]["section"]
    health, over_epochs, against_p, *_ = view["panelBankConfig"]["sections"]
    names = [panel["config"]["metrics"] for panel in health["panels"]]
    assert names == [[name] for name in (*FIRST_CHARTS.values(), VERDICT)]
    names = set()
    for panel in over_epochs["panels"]:
        assert panel["config"]["xAxis"] == "epoch"
        names.update(panel["config"]["metrics"])
    assert names == {column.name for column in COLUMNS.values() if column.chart}
    for panel, column in zip(against_p["panels"], compared(), strict=True):
        assert panel["config"]["xAxis"] == "config:p.value"
        assert panel["config"]["yAxis"] == f"summary:{column.name}"
    assert view["settings"]["shouldAutoGeneratePanels"]  # for all other values
    # A sweep is selected by the key that its runs log.
    (run_set,) = view["runSets"]
    (condition,) = run_set["filters"]["filters"]
    assert condition["key"]["name"] == "sweep_folder"
    assert condition["value"] == "ps"


def test_the_command_saves_the_workspace_and_prints_its_address(monkeypatch, capsys):
    def save(view):
        return SimpleNamespace(url=f"{view.entity}/{view.project}: {view.name}")

    arguments = ["--project", "mine", "--entity", "us", "--sweep", "ps"]
    monkeypatch.setattr(workspaces.Workspace, "save", save)
    workspace.main(arguments)
    assert capsys.readouterr().out == f"us/mine: {workspace.NAME}, ps\n"
    monkeypatch.setattr(workspaces.Workspace, "save", lambda _: 1 / 0)
    with pytest.raises(UserError, match="login"):
        workspace.main(arguments)
