"""The page of a finished run, for loggers that upload it."""

from types import SimpleNamespace

import pytest
from support.report_pages import write

from rdm_solo.loggers.run_logger import RunLogger
from rdm_solo.report import figures
from rdm_solo.report.callback import ReportPage


class Recorder(RunLogger):
    def __init__(self, takes_files: bool) -> None:
        self.takes_files = takes_files
        self.paths = []

    @classmethod
    def open(cls, run, previous):
        return cls(True)

    def file(self, path):
        self.paths.append(path)

    picture = histograms = None


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(figures, "PLOTS", ())  # the page's own tests draw
    return write(tmp_path / "run", -0.5, seed=0)


def test_the_page_is_written_only_for_loggers_that_upload_it(folder, capsys):
    silent, uploading = Recorder(False), Recorder(True)
    ReportPage(folder).on_run_end(SimpleNamespace(loggers=[silent]))
    assert not (folder / "report").exists()
    ReportPage(folder).on_run_end(SimpleNamespace(loggers=[silent, uploading]))
    assert uploading.paths == [folder / "report" / "report.html"]
    assert uploading.paths[0].is_file()
    assert not silent.paths
    assert not capsys.readouterr().out


def test_a_page_that_fails_is_a_warning(folder, caplog):
    (folder / "metrics.csv").unlink()
    (folder / ".hydra" / "config.yaml").unlink()
    uploading = Recorder(True)
    ReportPage(folder).on_run_end(SimpleNamespace(loggers=[uploading]))
    assert not uploading.paths
    assert "the run's page cannot be written" in caplog.text
