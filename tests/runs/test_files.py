"""Files are whole at any moment; what is read of a stranger's folder, and where is written."""

import os

import pytest
from support.report_pages import write

from rdm_solo.cli import arguments
from rdm_solo.preview.show import preview
from rdm_solo.report import entry as report
from rdm_solo.runs import files
from rdm_solo.runs.files import write_atomically


@pytest.mark.parametrize(
    "make",
    [
        lambda path: path.symlink_to("/dev/zero"),
        lambda path: path.write_bytes(b"\xff"),
        lambda path: path.write_text("!!python/object/apply:os.getcwd []"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(make, tmp_path):
    make(tmp_path / "config.yaml")
    with pytest.raises(files.Unreadable, match=r"config\.yaml"):
        files.read_yaml(tmp_path, "config.yaml")


def test_a_file_is_replaced_once_its_content_is_on_the_disk_and_no_link_is_followed(
    tmp_path, monkeypatch
):
    elsewhere, path, flushed = tmp_path / "elsewhere", tmp_path / "summary.json", []
    elsewhere.write_text("kept")
    path.symlink_to(elsewhere)
    monkeypatch.setattr(os, "fsync", lambda _: flushed.append(path.read_text()))
    write_atomically(path, "new")
    assert flushed[0] == "kept"
    assert path.read_text() == "new"
    assert elsewhere.read_text() == "kept"


def test_no_page_is_written_through_a_link_that_leads_out_of_the_folder(tmp_path):
    folder = write(tmp_path / "run", -0.5, seed=0)
    (tmp_path / "elsewhere").mkdir()
    for name in ("report", "figures"):
        (folder / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match=r"report cannot be read .it is a link"):
        report.write([folder])
    with pytest.raises(ValueError, match=r"figures cannot be read .it is a link"):
        preview(arguments.compose("preview", [f"run='{folder}'"]))
    assert not list((tmp_path / "elsewhere").iterdir())
