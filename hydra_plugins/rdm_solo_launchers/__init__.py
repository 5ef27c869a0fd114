"""Hydra's plugin for ``launcher=...``; rdm_solo.train.launchers has what each of them does.

Hydra imports this module before it answers --help, so that it loads nothing by itself.
"""

from collections.abc import Sequence
from typing import Any

from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher


class ByName(Launcher):
    """Writes the runs' configs down, and starts the runs as ``launcher.name`` says."""

    def setup(self, *, hydra_context: Any, task_function: Any, config: Any) -> None:
        self.context, self.task_function, self.config = hydra_context, task_function, config

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        from rdm_solo.train.launchers import start

        jobs = start.planned(self.context, self.config, job_overrides, initial_job_idx)
        return start.start(self.context, self.task_function, self.config, jobs)
