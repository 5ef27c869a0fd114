"""The page of a finished run, for loggers that upload it."""

from types import SimpleNamespace

from support.run_loggers import Recorder

from rdm_solo.report.callback import ReportPage


def test_a_page_that_fails_is_a_warning(tmp_path, caplog):
    uploading = Recorder()
    ReportPage(tmp_path).on_run_end(SimpleNamespace(loggers=[uploading]))
    assert not uploading.files
    assert "the run's page cannot be written" in caplog.text
