"""The runs of a study in processes, and what its commands say where one fails."""

from __future__ import annotations

import sys
from concurrent.futures.process import BrokenProcessPool

import pytest
from support import failing_task

from rdm_solo.evidence import processes, study
from rdm_solo.evidence.collapse import study as collapse
from rdm_solo.evidence.methods import study as methods


@pytest.mark.process
def test_a_run_that_fails_ends_the_study_and_loses_no_other(tmp_path):
    added: list[int] = []
    tasks = [(number, tmp_path) for number in range(30)]
    with pytest.raises(processes.RunFailed, match=r"the run of 3, .*FloatingPointError: the loss"):
        processes.run_all(failing_task.measure, tasks, 2, added.append)
    began = {int(path.name) for path in tmp_path.iterdir()}
    assert set(added) == began - {failing_task.FAILING}
    assert len(added) == len(set(added))
    assert len(began) < len(tasks)


@pytest.mark.parametrize("command", [study, collapse, methods])
@pytest.mark.parametrize(
    ("error", "says"),
    [
        (BrokenProcessPool("gone"), "a process of a run was killed, perhaps for memory"),
        (OSError(28, "No space left on device", "a.csv"), "a.csv: No space left on device"),
        (processes.RunFailed("the run of 3 failed"), "error: the run of 3 failed"),
    ],
)
def test_a_study_that_cannot_go_on_says_so_in_a_sentence(
    command, error, says, tmp_path, monkeypatch, capsys
):
    def fail(*_):
        raise error

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(processes, "run_all", fail)
    monkeypatch.setattr(sys, "argv", ["evidence"])
    with pytest.raises(SystemExit):
        command.main()
    assert says in capsys.readouterr().err.splitlines()[-1]
    assert not list(tmp_path.rglob("*.md"))
