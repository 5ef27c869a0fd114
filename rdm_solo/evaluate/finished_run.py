"""A finished run's model as its last checkpoint has it, and its training views, once more.

Nothing is trained and nothing is written. Batch norm goes by the batch's own statistics
(``train()`` mode), as it did in both branches while the run trained: solo-learn never puts the
momentum encoder into ``eval()``, a spectral filter works on the batch alone, and running averages
lag behind a model that moved. Batches are those of all the run's processes together.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch
from omegaconf import DictConfig
from torch import Tensor

from rdm_solo import methods
from rdm_solo.cli.third_party import silence_notices
from rdm_solo.data.loaders import Loader, loader
from rdm_solo.evaluate import typed_options
from rdm_solo.evaluate.features import choose_device
from rdm_solo.messages import UserError
from rdm_solo.methods import backbones
from rdm_solo.runs import checkpoints, reading, saved_config
from rdm_solo.runs.folder import Run
from rdm_solo.train import datamodule, derived_values


@dataclass(frozen=True)
class FinishedRun:
    """A run's model in training mode, and where its training views come from.

    ``epoch`` is the checkpoint's, from 0; ``queue`` SwAV's ``(2, Q, d)``, where one was in use.
    """

    model: Any
    loader: Loader
    epoch: int
    queue: Tensor | None = None

    @property
    def views(self) -> int:
        """Large crops of an image."""
        return int(self.model.num_large_crops)

    def batches(self, rows: int) -> Iterator[list[Tensor]]:
        """The large crops of each batch until at least ``rows`` of them have come.

        They begin with the views of the checkpoint's own epoch, and go on with the next ones'.
        """
        seen = 0
        for epoch in count(self.epoch):
            self.loader.set_epoch(epoch)
            for batch in self.loader:
                crops = list(batch[1][: self.views])
                yield crops
                seen += self.views * len(crops[0])
                if seen >= rows:
                    self.loader.report_skipped()
                    return


# What of a run's config makes its model and its views.
PARTS = (
    *("method", "filter", "p", "dataset", "backbone", "optimizer", "scheduler", "trainer", "knn"),
    *("batch_size", "seed", "max_epochs"),
)


def load(run: Run, device: str = "cpu", typed: Mapping[str, Any] | None = None) -> FinishedRun:
    """The run's model and views on that device; ValueError, in one sentence, where that fails.

    ``typed`` are options that the user gave, by dotted name, such as ``filter.function``.
    """
    home = choose_device(device)
    path, saved = checkpoints.latest(run.folder)
    with reading.named(run.folder):
        given = typed_options.changed(run.folder, typed or {})
        cfg = saved_config.to_build(given, run.folder, PARTS, typed or {})
        dataset, views = datamodule.made(cfg)
        # As training had it, on this machine's one process.
        cfg.trainer.devices = cfg.trainer.num_nodes = 1
        cfg.batch_size = min(cfg.batch_size, len(dataset.train))
        full: DictConfig
        full, _ = derived_values.derive(cfg, dataset, views.num_large_crops, views.num_small_crops)
        silence_notices()
        with torch.random.fork_rng():
            model = methods.build(full)
        state, epoch = saved["state_dict"], int(saved["epoch"])
        started = {name: state.pop(name, None) for name in getattr(model, "made_at_start", ())}
        queue = started.get("queue")
        try:
            model.load_state_dict(state)
        except RuntimeError as error:
            first = "".join(str(error).splitlines()[1:2]).strip()
            raise UserError(
                f"{path} does not fit the model of the run's config: {first}"
            ) from error
        if queue is not None and epoch < full.method.kwargs.epoch_queue_starts:
            queue = None  # filled, but not in use yet
        for spectral in getattr(model, "filters", ()):
            spectral.set_epoch(epoch)
    model.to(home).train().requires_grad_(False)

    batches = loader(
        dataset,
        "train",
        min(run.filter_batch or full.batch_size, len(dataset.train)),
        views=views,
        seed=full.seed,
        device=home,
        expand_channels=backbones.input_channels(full),
    )
    return FinishedRun(model, batches, epoch, None if queue is None else queue.to(home))
