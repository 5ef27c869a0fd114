"""WatchTrainerCallback in the Trainer of Hugging Face's transformers."""

import os
import sys

import pytest
import torch
from support.own_models import DIM, SimSiam, siamese_step
from support.small_runs import read_summary, rows
from torch import nn
from torch.utils.data import IterableDataset

from rdm_solo import runs
from rdm_solo.ground.errors import UserError
from rdm_solo.watch import Bounds, Watch

# Where .ci/run has put the libraries, without their dependencies.
PACKAGES = os.environ.get("RDM_SOLO_OTHER_PACKAGES")

pytestmark = pytest.mark.skipif(
    not PACKAGES, reason="the libraries are not here (.ci/run brings them)"
)


@pytest.fixture(autouse=True, scope="module")
def _packages():
    """Put the libraries last on the path, and remove them for the tests of other files."""
    sys.path.append(PACKAGES)
    yield
    sys.path.remove(PACKAGES)


class ForTrainer(SimSiam):
    """A model that returns its loss, as the Trainer expects."""

    def forward(self, batch):
        views = batch.transpose(0, 1)
        both = (SimSiam.forward(self, x) for x in views)
        (z1, p1), (z2, p2) = both
        z, p = torch.cat([z2, z1]).detach(), torch.cat([p1, p2])
        loss = -torch.cosine_similarity(p, z).mean()
        return {"loss": loss, "z": z}


class WithoutLoss(SimSiam):
    """A model whose loss is computed by the Trainer."""

    def forward(self, batch):
        return [SimSiam.forward(self, x) for x in batch.transpose(0, 1)]


def examples(count=70):
    """Return pairs of views ``(2, DIM)``."""
    rng = torch.Generator().manual_seed(2)
    return [{"batch": x} for x in torch.randn(count, 2, DIM, generator=rng)]


def make_trainer(folder, model=None, *, data=None, trainer_class=None, options=None, **arguments):
    """Return a Trainer that makes 7 steps of 10 examples per epoch, and its callback."""
    from transformers import Trainer, TrainingArguments

    from rdm_solo.watch import WatchTrainerCallback

    settings = {
        "num_train_epochs": 2,
        "learning_rate": 0.0,
        "per_device_train_batch_size": 10,
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
        "save_strategy": "no",
        "logging_strategy": "epoch",
        "label_names": [],
    }
    settings |= arguments
    args = TrainingArguments(output_dir=str(folder / "trainer"), **settings)
    data = data or examples()
    trainer_class = trainer_class or Trainer
    trainer = trainer_class(model or ForTrainer(), args, train_dataset=data, eval_dataset=data)
    callback = WatchTrainerCallback(folder / "watch", **options or {})
    trainer.add_callback(callback)
    return trainer


def epochs_in(folder):
    return [row["epoch"] for row in rows(folder / "watch")]


def logged(name, trainer):
    return [entry[name] for entry in trainer.state.log_history if name in entry]


@pytest.mark.parametrize("accumulation", [1, 3])
def test_a_run_is_measured_as_by_a_watch_in_a_plain_loop(tmp_path, accumulation):
    """Evaluation is not measured. The Trainer logs its own loss, and scalars through log=."""
    trainer = make_trainer(
        tmp_path,
        gradient_accumulation_steps=accumulation,
        eval_strategy="epoch",
        train_sampling_strategy="sequential",
        options={"views": 2, "log": lambda scalars, epoch: trainer.log(scalars)},
    )
    trainer.train()
    first, second = rows(tmp_path / "watch")
    model = SimSiam()
    data = torch.stack([x["batch"] for x in examples()])
    with Watch(tmp_path / "plain", model, views=2) as plain:
        for batches in data.reshape(7, 10, 2, DIM).split(accumulation):
            losses = [siamese_step(model, batch.transpose(0, 1)) for batch in batches]
            plain.step(torch.stack(losses).mean())
        expected = plain.end_epoch()
    assert first == pytest.approx({"epoch": 1, **expected}, rel=1e-6)
    losses = [first["train/loss"], second["train/loss"]]
    assert losses == pytest.approx(logged("loss", trainer), rel=1e-6)
    assert logged("erank/online", trainer) == [first["erank/online"], second["erank/online"]]
    run = runs.load(tmp_path / "watch")
    assert (run.method, run.epochs, run.missing, run.config.seed) == ("ForTrainer", 2, (), 42)
    assert run.spectra["rows"].tolist() == [140, 140]


def test_stop_ends_the_run_at_the_first_collapse(tmp_path):
    model = ForTrainer()
    nn.init.zeros_(model.projection_head.weight)
    options = {"stop": True, "bounds": Bounds(warmup=0), "checks": False}
    trainer = make_trainer(tmp_path, model, num_train_epochs=4, options=options)
    trainer.train()
    assert epochs_in(tmp_path) == [1, 2]
    assert trainer.state.epoch == 2
    assert read_summary(tmp_path / "watch")["stopped"] == "stop=True: complete collapse"


def test_a_run_that_resumes_from_a_checkpoint_resumes_its_folder(tmp_path):
    """Resume after epoch 2, within epoch 3 and in an empty folder; refuse to start again."""
    trainer = make_trainer(tmp_path, num_train_epochs=3, save_strategy="steps", save_steps=2)
    trainer.train()
    before = rows(tmp_path / "watch")
    with pytest.raises(UserError, match="resume"):
        make_trainer(tmp_path).train()
    for step in (14, 16):
        checkpoint = str(tmp_path / f"trainer/checkpoint-{step}")
        resumed = make_trainer(tmp_path, num_train_epochs=4)
        resumed.train(resume_from_checkpoint=checkpoint)
        assert epochs_in(tmp_path) == [1, 2, 3, 4]
        assert rows(tmp_path / "watch")[:2] == before[:2]
    in_empty_folder = make_trainer(tmp_path / "empty", num_train_epochs=4)
    in_empty_folder.train(resume_from_checkpoint=checkpoint)
    assert epochs_in(tmp_path / "empty") == [3, 4]


class Stream(IterableDataset):
    """Data without a length."""

    def __iter__(self):
        return iter(examples())


@pytest.mark.parametrize(
    ("data", "steps", "expected"),
    [(None, 3, [60]), (None, 10, [140, 60]), (Stream(), 3, [60])],
)
def test_max_steps_may_end_within_an_epoch(tmp_path, data, steps, expected):
    make_trainer(tmp_path, data=data, max_steps=steps).train()
    run = runs.load(tmp_path / "watch")
    assert run.spectra["rows"].tolist() == expected
    assert run.missing == ()


def test_a_trainer_may_compute_the_loss_and_train_again_after_an_error(tmp_path):
    from transformers import Trainer

    class OwnLoss(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, **more):
            if self.state.global_step == 8:
                raise RuntimeError("interrupted")
            (_, p1), (z2, _) = model(**inputs)
            return -torch.cosine_similarity(p1, z2.detach()).mean()

    trainer = make_trainer(
        tmp_path, WithoutLoss(), trainer_class=OwnLoss, options={"overwrite": True}
    )
    with pytest.raises(RuntimeError, match="interrupted"):
        trainer.train()
    assert epochs_in(tmp_path) == [1]
    OwnLoss.compute_loss = lambda self, model, inputs, **more: model(**inputs)[0][1].mean()
    trainer.train()
    (old,) = tmp_path.glob("watch.old-*")
    assert "did not finish" in str(runs.load(old).missing)
    assert epochs_in(tmp_path) == [1, 2]
    assert "train/loss" not in rows(tmp_path / "watch")[0]
