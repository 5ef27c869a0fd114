"""Name the images that ``dataset.skip_broken=true`` left out."""

import logging
from pathlib import Path
from typing import Any

from rdm_solo.distributed import gather_objects
from rdm_solo.lightning import pl
from rdm_solo.messages import printable
from rdm_solo.runs.files import SKIPPED, write_whole

log = logging.getLogger("rdm_solo")


class SkippedImages(pl.Callback):  # type: ignore[misc,name-defined]
    """List in ``skipped.txt`` the images that any process has skipped, and log the first ones."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lines: dict[str, str] = {}

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        reasons: dict[str, str] = {}
        for of_one_process in gather_objects(trainer.datamodule.skipped()):
            reasons |= of_one_process
        new = {path: reasons[path] for path in sorted(reasons) if path not in self.lines}
        epoch = trainer.current_epoch + 1
        for path, why in new.items():
            self.lines[path] = f"epoch {epoch}: {printable(path)} {why}\n"
        if new and trainer.is_global_zero:
            from rdm_solo.data.file_loader import skipped_images  # loaded where images are files

            log.warning(f"warning: epoch {epoch}: {skipped_images(new)}; {SKIPPED} lists them")
            write_whole(self.folder / SKIPPED, "".join(self.lines.values()))
