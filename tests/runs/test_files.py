"""Files are whole at any moment."""

from __future__ import annotations

import pytest

from rdm_solo.messages import CannotWrite
from rdm_solo.runs.files import write_atomically


def test_a_file_is_replaced_by_text_bytes_or_what_a_function_writes(tmp_path):
    path = tmp_path / "a.txt"
    for content in ("σ\n", "σ\n".encode(), lambda file: file.write("σ\n".encode())):
        write_atomically(path, content)
        assert path.read_bytes() == b"\xcf\x83\n"
    assert list(tmp_path.iterdir()) == [path]


def test_a_writer_that_fails_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")

    def half(file):
        file.write(b"ne")
        file.flush()
        assert path.read_text() == "old"
        raise OSError("disk full")

    with pytest.raises(CannotWrite, match="disk full"):
        write_atomically(path, half)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_what_was_written_is_on_the_disk_before_the_name_points_to_it(tmp_path, monkeypatch):
    calls = []
    for name in ("fsync", "replace"):
        real = getattr(__import__("os"), name)
        monkeypatch.setattr(
            f"os.{name}", lambda *args, name=name, real=real: (calls.append(name), real(*args))
        )
    write_atomically(tmp_path / "a.txt", "new")
    assert calls == ["fsync", "replace"]
