"""The runs of the studies: their options, what they measure, and the row of each."""

import pytest
import torch
from hydra.utils import instantiate
from support import small_runs

from rdm_solo.train import checks, compose
from studies import images, training
from studies.alarms import outcome, plan
from studies.alarms import runs as alarms
from studies.alarms.page import STUDY as ALARMS
from studies.evidence import runs as evidence
from studies.evidence.page import STUDY as EVIDENCE
from studies.mechanism import runs as mechanism
from studies.mechanism.page import STUDY as MECHANISM
from studies.mechanism.plan import PLAN, SETTINGS, TUNING, Run
from studies.methods import runs as methods
from studies.methods.page import STUDY as METHODS


def train_two_epochs(options, folder):
    """Train two epochs of two batches in this process, and return the summary."""
    quick = ["max_epochs=2", "scheduler.warmup_epochs=0", "++trainer.limit_train_batches=2"]
    small_runs.run(folder, *options, *quick, "++trainer.check_val_every_n_epoch=1")
    return small_runs.read_summary(folder)


@pytest.mark.parametrize(
    ("study", "run"),
    [
        (ALARMS, ["test/digits/healthy, simsiam/0"]),
        (EVIDENCE, ["SimSiam: learnable", 40]),
        (MECHANISM, ["SimSiam -0.5", "digits", 2, TUNING[0], "0.5"]),
        (METHODS, ["simclr", 50]),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_a_run_becomes_a_row(study, run, monkeypatch, tmp_path):
    monkeypatch.setattr(training, "train", train_two_epochs)
    monkeypatch.setattr(evidence, "PROBED", (1, 2))
    monkeypatch.setattr(evidence, "WARMUP", 0)
    monkeypatch.setattr(mechanism, "WARMUP", 0)
    monkeypatch.setattr(alarms, "VERSIONS", tmp_path / "versions.txt")
    alarms.VERSIONS.write_text("the versions of another run\n")
    row = study.measure(*run)
    recorded = study.read()
    assert set(recorded) - {"settings"} <= row.keys()
    assert [row[name] for name in study.key] == list(map(str, run))
    is_always_measured = (recorded != "").all()
    for name in set(recorded.columns[is_always_measured]) - {"settings"}:
        assert row[name], name


@pytest.mark.process
@pytest.mark.long
def test_a_run_that_diverges_in_its_first_epoch_becomes_a_row(monkeypatch):
    short = ["max_epochs=2", "scheduler.warmup_epochs=0", "optimizer.lr=1e30", "batch_size=256"]
    monkeypatch.setitem(methods.PLAN, "shared", [*methods.PLAN["shared"], *short])
    row = methods.measure("vanilla", 7)
    assert row["diverged"] == "training diverged in epoch 1"
    assert row["erank/target"] == ""


@pytest.mark.process
@pytest.mark.long
def test_an_untrained_network_has_the_recorded_accuracy():
    table = EVIDENCE.read()
    recorded = table[table["row"] == evidence.UNTRAINED].iloc[0]
    row = evidence.measure(evidence.UNTRAINED, int(recorded["seed"]))
    assert float(row["knn end"]) == pytest.approx(float(recorded["knn end"]), abs=1)


@pytest.mark.parametrize("setting", SETTINGS)
def test_every_setting_of_the_trial_has_a_valid_config(setting):
    cfg = compose(mechanism.options(Run(setting, "angles", 30, seed=3, rate="0.3")))
    checks.check(cfg)
    assert cfg.optimizer.lr == 0.3
    assert cfg.max_epochs == cfg.callbacks.probe.epochs[-1] == 30
    assert ("speeds" in cfg.callbacks) == (setting in PLAN["settings"]["rate"])


def test_the_plan_draws_the_recorded_options():
    recorded = ALARMS.read().set_index("name")
    for name, run in plan.all_runs().items():
        if run.part == plan.CHOOSE:
            options = " ".join(plan.draw(run)[-2:])
            assert options == recorded.loc[name, "options"]


def pixels(part) -> set[bytes]:
    return set(map(bytes, part.images.numpy()))


@pytest.mark.parametrize("name", ["textures", "angles", "digits"])
def test_held_out_images_are_in_no_other_part(name):
    run = plan.all_runs()[f"test/{name}/vanilla/0"]
    trained = instantiate(compose(plan.draw(run) + alarms.study_options(run)).dataset.source)
    labelled = images.labelled(name, 1920)
    assert torch.equal(trained.train.images, labelled.train.images)
    assert len(labelled.val) == (images.HELD_OUT_DIGITS if name == "digits" else 1920)
    if name != "digits":  # a few digits occur twice
        assert not pixels(labelled.val) & (pixels(trained.train) | pixels(trained.val))


@pytest.mark.parametrize("data", ["textures", "angles", "digits"])
def test_rates_are_chosen_on_training_images_only(data):
    run = Run("SimSiam -0.5", data, 30, TUNING[0], "0.5")
    tuned = instantiate(compose(mechanism.options(run)).dataset.source)
    counted = instantiate(compose(mechanism.options(run._replace(seed=200))).dataset.source)
    assert len(tuned.val) == len(counted.train) // 5
    assert pixels(tuned.train) | pixels(tuned.val) == pixels(counted.train)
    assert not pixels(tuned.train) & pixels(tuned.val)


def test_the_linear_accuracy_depends_on_what_features_keep():
    rng = torch.Generator().manual_seed(0)
    y = torch.arange(300) % 3
    x = torch.nn.functional.one_hot(y).float() + 0.1 * torch.randn(300, 3, generator=rng)
    assert outcome.linear_accuracy(x, y, x, y) == 100
    assert outcome.linear_accuracy(x, y, x, (y + 1) % 3) == 0
    assert outcome.linear_accuracy(torch.ones(300, 3), y, x, y) < 40
