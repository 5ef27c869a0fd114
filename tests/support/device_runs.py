"""Train small runs on the second device, and list the waits of each step."""

from pathlib import Path
from unittest import mock

from rdm_solo.ground.lightning import pl
from support import second_device, waits
from support.small_runs import run


class Accelerator(pl.accelerators.Accelerator):
    """Tell Lightning that there is one such device."""

    parse_devices = staticmethod(lambda devices: devices)
    get_parallel_devices = staticmethod(lambda devices: [second_device.DEVICE])
    auto_device_count = staticmethod(lambda: 1)
    is_available = staticmethod(lambda: True)
    get_device_stats = staticmethod(lambda device: {})
    name = staticmethod(lambda: second_device.NAME)

    def setup_device(self, device) -> None:
        assert str(device) == second_device.DEVICE

    def teardown(self) -> None:
        pass


class StepWaits(pl.Callback):
    """List in ``of_steps`` the waits of each step, from the start of its batch to the next start.

    Left out are the run's first step, which creates objects that later steps reuse, and the last
    step of each epoch, because the work at the end of the epoch follows it.
    """

    def __init__(self) -> None:
        self.counter = waits.Waits()
        self.of_steps: list[list[waits.Wait]] = []
        self.began = 0

    def on_train_batch_start(self, trainer, module, batch, batch_idx: int) -> None:
        if batch_idx and trainer.global_step > 1:
            self.of_steps.append(self.counter.found[self.began :])
        self.began = len(self.counter.found)


def run_there(folder: Path, *overrides: str) -> list[list[waits.Wait]]:
    """Train on the second device and return the waits of each step."""

    def on_device(**options):
        strategy = pl.strategies.SingleDeviceStrategy(second_device.DEVICE)
        return pl_trainer(**options | {"accelerator": Accelerator(), "strategy": strategy})

    pl_trainer = pl.Trainer
    steps = StepWaits()
    with mock.patch.object(pl, "Trainer", on_device), steps.counter:
        run(folder, *overrides, callbacks=[steps])
    return steps.of_steps
