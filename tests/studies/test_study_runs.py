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


RUNS = {
    ALARMS: ["test/digits/no batch norm, simsiam/0"],
    EVIDENCE: ["SimSiam: learnable", 40],
    MECHANISM: ["rotated", "digits", 2, TUNING[0], "0.5"],
    METHODS: ["simclr", 50],
}


@pytest.mark.filterwarnings("ignore:lbfgs failed to converge")
@pytest.mark.parametrize("study", RUNS, ids=lambda study: study.name)
def test_a_run_becomes_a_row(study, monkeypatch):
    monkeypatch.setattr(training, "train", train_two_epochs)
    monkeypatch.setattr(outcome, "MOST_ITERATIONS", 10)
    monkeypatch.setattr(evidence, "PROBED", (1, 2))
    monkeypatch.setattr(evidence, "WARMUP", 0)
    monkeypatch.setattr(mechanism, "WARMUP", 0)
    row = study.row(*RUNS[study])
    table = study.read().drop(columns="settings", errors="ignore")  # of earlier versions
    assert set(table) <= set(row)
    always_measured = table.columns[(table != "").all()]
    assert [name for name in always_measured if not row[name]] == []


@pytest.mark.process
@pytest.mark.long
def test_a_run_that_diverges_in_its_first_epoch_becomes_a_row(monkeypatch):
    short = ["max_epochs=2", "scheduler.warmup_epochs=0", "batch_size=256"]
    options = [*methods.PLAN["shared"], *short, "optimizer.lr=1e30"]
    monkeypatch.setitem(methods.PLAN, "shared", options)
    row = methods.measure("vanilla", 7)
    assert row["diverged"] == "training diverged in epoch 1"
    assert row["erank/target"] == ""


@pytest.mark.process
@pytest.mark.long
def test_an_untrained_network_has_the_recorded_accuracy():
    table = EVIDENCE.read()
    recorded = table[table["row"] == evidence.UNTRAINED].iloc[0]
    row = evidence.measure(evidence.UNTRAINED, int(recorded["seed"]))
    expected = float(recorded["knn end"])
    assert float(row["knn end"]) == pytest.approx(expected, abs=1)


@pytest.mark.parametrize("setting", SETTINGS)
def test_every_setting_of_the_trial_has_a_valid_config(setting):
    run = Run(setting, "angles", 30, seed=3, rate="0.3")
    cfg = compose(mechanism.options(run))
    checks.check(cfg)
    assert cfg.optimizer.lr == 0.3
    assert cfg.max_epochs == 30
    assert cfg.callbacks.probe.epochs == [0, 30]
    measures_speeds = "speeds" in cfg.callbacks
    assert measures_speeds == (setting in PLAN["settings"]["rate"])


def test_the_plan_draws_the_recorded_options():
    recorded = ALARMS.read().set_index("name")
    for name, run in plan.all_runs().items():
        if run.part in (plan.CHOOSE, plan.VIT):
            drawn = plan.draw(run)[-len(run.about["draw"]) - 2 :]
            assert " ".join(drawn) == recorded.loc[name, "options"]


@pytest.mark.long
def test_every_run_of_the_transformer_has_256_or_more_outputs():
    runs = [run for run in plan.all_runs().values() if run.part == plan.VIT]
    for run in runs:
        cfg = compose(plan.draw(run))
        assert cfg.backbone.name.startswith("timm/vit")
        assert cfg.method.kwargs.proj_output_dim >= 256
        assert cfg.method.kwargs.get("num_prototypes", 256) >= 256


def source(options):
    """Return the data set that a run with these options trains on."""
    cfg = compose(options)
    return instantiate(cfg.dataset.source)


def pixels(part) -> set[bytes]:
    return set(map(bytes, part.images.numpy()))


@pytest.mark.parametrize("name", ["textures", "angles", "digits"])
def test_held_out_images_are_in_no_other_part(name):
    run = plan.all_runs()[f"test/{name}/vanilla/0"]
    trained = source(plan.draw(run) + alarms.study_options(run))
    labelled = images.labelled(name, 1920)
    assert torch.equal(trained.train.images, labelled.train.images)
    if name == "digits":  # a few digits occur twice
        assert len(labelled.val) == images.HELD_OUT_DIGITS
    else:
        assert len(labelled.val) == 1920
        known = pixels(trained.train) | pixels(trained.val)
        assert known.isdisjoint(pixels(labelled.val))


@pytest.mark.parametrize("data", ["textures", "angles", "digits"])
def test_rates_are_chosen_on_training_images_only(data):
    run = Run("SimSiam -0.5", data, 30, TUNING[0], "0.5")
    tuned = source(mechanism.options(run))
    counted = source(mechanism.options(run._replace(seed=200)))
    train, val = pixels(tuned.train), pixels(tuned.val)
    assert len(tuned.val) == len(counted.train) // 5
    assert train.isdisjoint(val)
    assert train | val == pixels(counted.train)


def test_the_linear_accuracy_depends_on_what_features_keep():
    rng = torch.Generator().manual_seed(0)
    y = torch.arange(300) % 3
    noise = torch.randn(300, 3, generator=rng)
    x = torch.eye(3)[y] + 0.1 * noise
    constant = torch.ones(300, 3)
    assert outcome.linear_accuracy(x, y, x, y) == 100
    assert outcome.linear_accuracy(x, y, x, y.roll(1)) == 0
    assert outcome.linear_accuracy(constant, y, x, y) < 40
