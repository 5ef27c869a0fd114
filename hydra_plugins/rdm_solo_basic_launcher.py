"""Hydra plugin for ``launcher=basic``: run a sweep's jobs one after the other."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from hydra._internal.core_plugins import basic_launcher
from hydra.core.config_store import ConfigStore
from hydra.core.utils import JobReturn


@dataclass
class BasicLauncherConf:
    _target_: str = "hydra_plugins.rdm_solo_basic_launcher.BasicLauncher"


store = ConfigStore.instance()
store.store(name="rdm_solo_basic", node=BasicLauncherConf, group="hydra/launcher")


class BasicLauncher(basic_launcher.BasicLauncher):
    """Hydra's basic launcher; the process of the next run starts while a run trains."""

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        from rdm_solo.train import standby

        with standby.Starter(runs=len(job_overrides)) as starter:
            # The job is `sweep.run_command`, which starts each run with the starter.
            self.task_function = partial(self.task_function, starter=starter)
            return super().launch(job_overrides, initial_job_idx)
