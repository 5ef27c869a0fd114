"""Load the model of a run's last checkpoint and its training views.

Nothing is trained and nothing is written. Batch norm uses the batch's own statistics (``train()``
mode) as it did in both branches during training: solo-learn never puts the momentum encoder into
``eval()``, a spectral filter works on the batch alone, and running averages lag behind the
weights. Batches are global: they hold the rows of all the run's processes.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch
from torch import Tensor

from rdm_solo import methods
from rdm_solo.cli.terminal import silence_third_party
from rdm_solo.data import Loader, loader
from rdm_solo.methods import backbones
from rdm_solo.runs import checkpoints, files, saved_config
from rdm_solo.runs.folder import RunFolder
from rdm_solo.runs.settings import SETTING
from rdm_solo.train import training_data


@dataclass(frozen=True)
class FinishedRun:
    """A run's model in training mode, and the loader of its training views.

    ``views`` is the number of large crops per image, ``epoch`` the checkpoint's epoch (from 0), and
    ``queue`` SwAV's queue ``(2, Q, d)`` if training used it.
    """

    model: Any
    loader: Loader
    views: int
    epoch: int
    queue: Tensor | None = None

    def batches(self, rows: int) -> Iterator[list[Tensor]]:
        """Yield the large crops of each batch until there are at least ``rows`` of them.

        The batches are those of the checkpoint's epoch, then of later epochs.
        """
        total = 0
        for epoch in count(self.epoch):
            self.loader.set_epoch(epoch)
            for batch in self.loader:
                crops = list(batch[1][: self.views])
                yield crops
                total += self.views * len(crops[0])
                if total >= rows:
                    self.loader.report_skipped()
                    return


def load(run: RunFolder) -> FinishedRun:
    """Return the run's model and views, on the CPU."""
    _, saved = checkpoints.latest(run.folder)
    with files.prefix_errors(run.folder):
        config = saved_config.unresolved_config(run.folder)
        cfg = saved_config.trusted_config(config, run.folder, [*SETTING, "seed", "knn"])
        dataset, views = training_data.make_data(cfg)
        cfg.trainer.devices = cfg.trainer.num_nodes = 1
        cfg.batch_size = min(cfg.batch_size, len(dataset.train))
        model_cfg, _ = training_data.derive(cfg, dataset, views)
        silence_third_party()
        with torch.random.fork_rng():
            model = methods.build(model_cfg)
        state = saved["state_dict"]
        epoch = int(saved["epoch"])
        queue = None
        if "queue" in getattr(model, "late_buffers", ()):  # SwAV's
            queue = state.pop("queue", None)
            if epoch < model_cfg.method.kwargs.epoch_queue_starts:
                queue = None  # filled but not used yet
        model.load_state_dict(state)
        for spectral in getattr(model, "filters", ()):
            spectral.set_epoch(epoch)
    model.train().requires_grad_(False)
    batch_size = run.filter_batch or model_cfg.batch_size
    batches = loader(
        dataset,
        "train",
        min(batch_size, len(dataset.train)),
        views=views,
        seed=model_cfg.seed,
        expand_channels=backbones.input_channels(cfg.backbone.name, cfg.backbone.kwargs),
    )
    return FinishedRun(model, batches, views.num_large_crops, epoch, queue)
