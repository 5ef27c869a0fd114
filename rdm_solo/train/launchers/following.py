"""Follows runs that go on elsewhere, by the files that they print to."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rdm_solo.runs import earlier_run, failures
from rdm_solo.runs.files import FAILED, SUMMARY
from rdm_solo.train import signals
from rdm_solo.train.launchers.board import Board
from rdm_solo.train.launchers.plan import Job

ROWS = 16  # of runs whose progress a terminal shows
POLL = 5.0  # seconds between two looks


@dataclass
class Followed:
    """A job that was handed over."""

    job: Job
    id: str  # by which it is known there
    output: Path  # the file that the run's first process prints to
    read: int = 0  # bytes of it
    state: str = ""
    row: int | None = None  # of the board
    before: dict[str, int | None] = field(default_factory=dict)  # when files there were written

    def __post_init__(self) -> None:
        self.before = {name: self._written(name) for name in (SUMMARY, FAILED)}

    def has_finished(self) -> bool:
        """Whether the run has ended as it should, since it was handed over."""
        return self._is_new(SUMMARY) and earlier_run.has_ended(self.job.folder)

    def has_left_a_reason(self) -> bool:
        """Whether the run has left why it failed in its folder, since it was handed over."""
        return self._is_new(FAILED) and failures.of(self.job.folder) is not None

    def _is_new(self, name: str) -> bool:
        return self._written(name) not in (None, self.before[name])

    def _written(self, name: str) -> int | None:
        try:
            return (self.job.folder / name).stat().st_mtime_ns
        except OSError:
            return None

    def last_error(self) -> str | None:
        """The last sentence that the run has printed as an error."""
        try:
            lines = self.output.read_text("utf-8", "replace").splitlines()
        except OSError:  # it has not begun
            return None
        errors = [line for line in lines if line.startswith("error: ")]
        return errors[-1].removeprefix("error: ") if errors else None


def follow(
    jobs: Sequence[Followed],
    states: Callable[[], dict[str, str] | None],
    why_it_failed: Callable[[Followed], str | None],
) -> dict[Path, str]:
    """Show what the jobs say until all have ended.

    Returns, by folder, the reason of each failed run that left none in its folder. ``states`` tells
    the state, in words, of each job that has not ended, by its id, or None where nothing is known
    now; ``why_it_failed`` is asked about one that has ended.
    """
    return _Following(jobs, states, why_it_failed).until_all_have_ended()


class _Following:
    def __init__(
        self,
        jobs: Sequence[Followed],
        states: Callable[[], dict[str, str] | None],
        why_it_failed: Callable[[Followed], str | None],
    ) -> None:
        self.jobs, self.states, self.why_it_failed = list(jobs), states, why_it_failed
        self.rows = list(range(min(len(jobs), ROWS)))
        self.board = Board([job.job.name for job in jobs], len(self.rows))
        self.reasons: dict[Path, str] = {}

    def until_all_have_ended(self) -> dict[Path, str]:
        try:
            while self.jobs:
                signals.check()  # Ray may have caught what a handler raised
                states = self.states()
                for job in list(self.jobs):
                    self._show(job, states)
                if self.jobs:
                    time.sleep(POLL)
        finally:
            self.board.close()
        return self.reasons

    def _show(self, job: Followed, states: dict[str, str] | None) -> None:
        name = job.job.name
        state = job.state if states is None else states.get(job.id, "")
        if state and state != job.state:
            self.board.tell(name, f"{job.id}: {state}")
        job.state = state
        for line in _new_lines(job):
            if job.row is None and self.rows:
                job.row = self.rows.pop(0)
            self.board.show_line(job.row, name, line)
        if states is None or job.id in states:
            return
        self.jobs.remove(job)
        if reason := self.why_it_failed(job):
            self.reasons[job.job.folder] = reason
        failed = bool(reason) or job.has_left_a_reason()
        self.board.tell(name, "failed" if failed else "ended")
        self.board.ended(job.row)
        if job.row is not None:
            self.rows.append(job.row)


def _new_lines(job: Followed) -> list[str]:
    """Whole lines that the run has printed since the last time."""
    try:
        with open(job.output, "rb") as file:
            file.seek(job.read)
            text, _, _ = file.read().rpartition(b"\n")
    except OSError:  # the job has not begun
        return []
    job.read += len(text) + bool(text)
    return text.decode("utf-8", "replace").splitlines()
