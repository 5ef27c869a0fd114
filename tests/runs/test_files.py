"""Files are whole at any moment."""

from __future__ import annotations

import os

from rdm_solo.runs.files import write_atomically


def test_a_file_is_replaced_by_text_bytes_or_what_a_function_writes(tmp_path):
    path = tmp_path / "a.txt"
    for content in ("σ\n", "σ\n".encode(), lambda file: file.write("σ\n".encode())):
        write_atomically(path, content)
        assert path.read_bytes() == b"\xcf\x83\n"
    assert list(tmp_path.iterdir()) == [path]


def test_what_was_written_is_on_the_disk_before_the_name_points_to_it(tmp_path, monkeypatch):
    path, flushed = tmp_path / "a.txt", []
    path.write_text("old")
    monkeypatch.setattr(os, "fsync", lambda _: flushed.append(path.read_text()))
    write_atomically(path, "new")
    assert flushed[0] == "old"
    assert path.read_text() == "new"
