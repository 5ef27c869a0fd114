"""The lock of a run's folder, its owner, and the note of a failure."""

import pytest

from rdm_solo.ground.errors import UserError
from rdm_solo.runs import files, ownership


def test_a_missing_or_damaged_owner_is_nobody(tmp_path):
    assert ownership.last_owner(tmp_path) == {}
    (tmp_path / files.OWNER).write_text("[1")
    assert ownership.last_owner(tmp_path) == {}


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (UserError("p is missing\nsecond line"), "p is missing"),
        (ZeroDivisionError("by zero"), "ZeroDivisionError: by zero"),
    ],
)
def test_a_failure_is_one_line_and_the_first_one_stays(error, reason, tmp_path):
    with pytest.raises(type(error)), ownership.recording_failure(tmp_path):
        raise error
    assert ownership.failure(tmp_path) == reason
    ownership.record_failure(tmp_path, "of another process")
    assert ownership.failure(tmp_path) == reason
    with ownership.recording_failure(tmp_path):
        assert ownership.failure(tmp_path) is None, "a new start has not failed"


def test_a_failure_cannot_control_the_terminal(tmp_path):
    (tmp_path / files.FAILED).write_text("red \x1b[31m\x07text\n")
    assert ownership.failure(tmp_path) == "red  [31m text"
