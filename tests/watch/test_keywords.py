"""What a watch does beyond measuring: lines, jumps, a stuck loss, the best epoch, stop and dump."""

import copy
import logging
import math

import pytest
import torch
from omegaconf import OmegaConf
from support.own_models import (
    DIM,
    SimSiam,
    batches,
    collapsed_model,
    siamese_step,
    watched_epoch,
)
from support.small_runs import rows
from torch import nn

from rdm_solo import runs
from rdm_solo.collapse.rules import chance_level
from rdm_solo.ground.errors import UserError
from rdm_solo.observe.step_size import StepSize
from rdm_solo.watch import Bounds, Collapsed, Watch

NOW = Bounds(warmup=0)


def messages(caplog, level=logging.INFO):
    return [record.getMessage() for record in caplog.records if record.levelno == level]


@pytest.mark.parametrize("quiet", [False, True])
def test_a_line_per_epoch_says_how_the_run_stands(tmp_path, caplog, quiet):
    best = []
    options = {"quiet": quiet, "on_best": lambda *epoch: best.append(epoch)}
    with caplog.at_level(logging.INFO):
        for accuracy in (50.0, 40.0, 60.0, 55.0):  # the best one so far also after a resumption
            with Watch(tmp_path, SimSiam(), epochs=4, resume=True, **options) as watch:
                watched_step(watch)
                watch.end_epoch(val_knn_acc1=accuracy)
    assert best == [(1, 50.0), (3, 60.0)]
    lines = messages(caplog)
    if quiet:
        assert not lines
        return
    for epoch, line in enumerate(lines, 1):
        assert line.startswith(f"epoch {epoch}/4:")
        for word in ("erank", "features", "too early to say"):
            assert word in line
        assert ("(best)" in line) is (epoch in (1, 3))
    assert epoch == 4


def test_lines_are_visible_in_a_script_without_logging(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    with Watch(tmp_path, SimSiam()) as watch:
        watched_step(watch)
        watch.end_epoch(val_acc1=0.6)
        output = capfd.readouterr().err
        assert output.count("epoch 1: ") == 1
        assert "per cent" in output, "0.6 is a fraction"
        logging.getLogger().addHandler(logging.NullHandler())  # the program's logging decides
        watched_step(watch)
        watch.end_epoch(val_acc1=60.0)
    assert not capfd.readouterr().err


def test_a_jump_of_the_loss_is_reported_with_its_step(tmp_path, caplog):
    with Watch(tmp_path, SimSiam()) as watch:
        rng = torch.Generator().manual_seed(0)
        for step in range(200):
            siamese_step(watch.module, batches()[0])
            jump = 30 if step in (120, 150) else 0
            watch.step(1 + torch.rand((), generator=rng) + jump)
        watch.end_epoch()
        assert not watch.collapsed
    (warning,) = runs.load(tmp_path).summary["warnings"]
    assert (warning["kind"], warning["epoch"]) == ("loss jump", 1)
    assert "step 121 of epoch 1 and in 1 other steps" in warning["text"]


@pytest.mark.parametrize("classes", [None, 64, 16])
def test_a_loss_of_ln_k_is_stuck(tmp_path, classes):
    """K is that of the head, as in DINO, unless it is passed."""
    head = nn.Sequential(nn.Linear(DIM, 8), nn.ReLU(), nn.Linear(8, 64))
    model = nn.ModuleDict({"student_head": head, "teacher_head": copy.deepcopy(head)})
    with Watch(tmp_path, model, classes=classes, bounds=NOW, checks=False) as watch:
        for _ in range(2):
            for x, _ in batches():
                model["student_head"](x)
                model["teacher_head"](x)
                watch.step(math.log(64) + 0.001)
            scalars = watch.end_epoch()
    is_stuck = classes != 16
    assert ("stuck loss" in watch.collapsed) is is_stuck
    expected = (math.log(64) + 0.001) / math.log(classes or 64)
    assert scalars["train/loss_share"] == pytest.approx(expected, rel=1e-6)


def watched_step(watch):
    watch.step(siamese_step(watch.module, batches()[0]))


@pytest.mark.parametrize("dump", [False, True])
def test_a_watch_stops_the_loop_after_it_logged_and_saved_the_epoch(tmp_path, dump):
    logged = []
    options = {"log": lambda scalars, epoch: logged.append(epoch), "dump": dump}
    model = collapsed_model()
    watch = Watch(tmp_path, model, bounds=NOW, stop=True, checks=False, **options)
    watched_epoch(watch, model)
    with pytest.raises(Collapsed, match="complete collapse"), watch:
        watched_epoch(watch, model)
    assert logged == [row["epoch"] for row in rows(tmp_path)] == [1, 2]
    run = runs.load(tmp_path)
    assert "complete collapse" in run.summary["stopped"]
    assert not run.failure
    saved = list((tmp_path / "outputs").glob("*"))
    assert len(saved) == int(dump)
    for path in saved:
        outputs = torch.load(path, weights_only=True)
        _, p = model(batches()[-1][1])
        torch.testing.assert_close(outputs["online"][-len(p) :], p)
    with pytest.raises(UserError, match="closed"):
        watch.step()


def test_a_mistake_in_the_loop_stops_it_in_the_first_step(tmp_path):
    def step(model, batch):
        (z1, p1), (z2, p2) = model(batch[0]), model(batch[1])
        loss = -torch.cosine_similarity(torch.cat([p1, p2]), torch.cat([z2, z1])).mean()
        loss.backward()
        return loss

    with Watch(tmp_path, SimSiam(), stop=True) as watch, pytest.raises(Collapsed):
        watched_epoch(watch, watch.module, step)
    assert [finding.check for finding in watch.findings] == ["stop-gradient"]
    summary = runs.load(tmp_path).summary
    assert "stop-gradient" in summary["stopped"]
    assert [warning["kind"] for warning in summary["warnings"]] == ["stop-gradient"]
    with Watch(tmp_path / "off", SimSiam(), checks=False) as watch:
        watched_epoch(watch, watch.module, step)
    assert not watch.findings


@pytest.mark.parametrize("changed", [{"seed": 1}, {"config": {"lr": 2}}])
def test_a_watch_stores_its_settings_and_resumes_only_a_run_that_has_them(tmp_path, changed):
    """Settings are lists, mappings and plain values, so tuples become lists."""
    config = {"lr": 1e-05, "optimizer": {"name": "lars", "betas": (0.9, 0.95)}, "crop": None}
    with Watch(tmp_path, SimSiam(), seed=0, config=OmegaConf.create(config)) as watch:
        watched_epoch(watch, watch.module)
    stored = runs.load(tmp_path).config.watched.config
    assert stored == config | {"optimizer": {"name": "lars", "betas": [0.9, 0.95]}}
    options = {"seed": 0, "config": config}
    with pytest.raises(UserError, match=next(iter(changed))):
        Watch(tmp_path, SimSiam(), resume=True, **options | changed)
    Watch(tmp_path, SimSiam(), resume=True, **options).close()


def classified_images():
    """Return images of two classes, and their labels."""
    rng = torch.Generator().manual_seed(0)
    labels = torch.arange(60) % 2
    images = 0.3 * torch.randn(60, DIM, generator=rng)
    images[:, 0] += 4.0 * labels - 2
    return images, labels


def test_labelled_images_judge_the_features_from_before_the_first_step(tmp_path, caplog):
    images, labels = classified_images()
    data = (images[:40], labels[:40]), (images[40:], labels[40:])
    with caplog.at_level(logging.INFO):
        watch = Watch(tmp_path, SimSiam(), labelled=data, every_n_epochs=2, epochs=4, bounds=NOW)
    assert "before training: kNN" in caplog.text
    with watch:
        for epoch in range(1, 5):
            if epoch == 3:  # training destroys the features
                nn.init.zeros_(watch.module.backbone[0].weight)
            scalars = watched_epoch(watch, watch.module)
            assert ("val/knn_acc1" in scalars) is (epoch != 2)
    run = runs.load(tmp_path)
    assert run.untrained["val/knn_acc1"] == 100
    kinds = [warning["kind"] for warning in run.summary["warnings"]]
    assert "destroyed encoder" in kinds
    assert run.measured_epochs[-1].chance == 50
    with Watch(tmp_path, SimSiam(), labelled=data, resume=True) as resumed:
        assert [epoch.epoch for epoch in resumed.alarm.epochs] == [0, 1, 2, 3, 4]
        assert chance_level(resumed.alarm.epochs) == 50
    assert runs.load(tmp_path).measured_epochs[-1].chance == 50


@pytest.mark.parametrize("lr", [0.1, 30.0, 1e4])
@pytest.mark.parametrize("warm_up", [0, 8])
def test_a_learning_rate_that_is_far_too_high_is_found_in_ten_steps(tmp_path, lr, warm_up):
    """The largest rates change the weights in one step so much that later steps change little."""
    model = SimSiam()
    with Watch(tmp_path, model) as watch:
        nn.init.normal_(model.backbone[0].weight, std=0.2)  # as if weights were loaded
        for step, batch in enumerate(batches(10)):
            rate = lr * min(1, (step + 1) / max(1, warm_up))
            watch.step(optimized(model, batch, rate))
    assert [finding.check for finding in watch.findings] == ["learning rate"] * (lr > 1)


def test_a_learning_rate_that_rises_in_a_later_epoch_is_found_once(tmp_path):
    """The run is also resumed within the epoch."""
    for resume in (False, True):
        model = SimSiam()
        with Watch(tmp_path, model, resume=resume) as watch:
            for lr in (0.1, 0.1, 0.1, 1e4)[3 * resume :]:
                for batch in batches():
                    watch.step(optimized(model, batch, lr))
                if lr < 1:
                    watch.end_epoch()
        (finding,) = watch.findings
        assert finding.check == "learning rate"
        (warning,) = runs.load(tmp_path).summary["warnings"]
        assert (warning["kind"], warning["epoch"]) == ("learning rate", 4)


def optimized(model, batch, lr):
    """Take a step and return its loss."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    loss = siamese_step(model, batch)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


def test_a_frozen_backbone_is_a_note(tmp_path, caplog):
    """The part that counts as backbone is the one that is named."""
    model = SimSiam()
    model.backbone.requires_grad_(False)
    with Watch(tmp_path, model, backbone="backbone.0") as watch:
        for batch in batches(10):
            watch.step(optimized(model, batch, lr=0.1))
        watch.end_epoch()
    assert [finding.check for finding in watch.findings] == ["frozen encoder"]
    assert "note: step 10: the weights of 'backbone.0'" in caplog.text
    (warning,) = runs.load(tmp_path).summary["warnings"]
    assert warning["kind"] == "frozen encoder"


def test_a_network_of_which_only_biases_are_trained_takes_no_large_step():
    layer = nn.Linear(64, 4)
    nn.init.zeros_(layer.bias)
    steps = StepSize(layer)
    layer(torch.ones(1, 64))
    nn.init.constant_(layer.bias, 1e-3)
    assert 0 < steps.change() < 0.01


def test_a_network_whose_forward_is_not_called_is_measured_from_the_second_step_on():
    layer = nn.Linear(2, 2)
    steps = StepSize(layer)
    changes = []
    for _ in range(2):
        layer.forward(torch.ones(1, 2))
        for parameter in layer.parameters():
            parameter.data *= 3
        changes.append(steps.change())
    assert changes == pytest.approx([0, 2])


def test_held_out_images_and_their_patches_are_measured(tmp_path, caplog):
    rng = torch.Generator().manual_seed(0)
    tokens = torch.randn(40, 9, DIM, generator=rng)
    model = SimSiam()
    model.backbone.pop(1)  # its ReLU
    with Watch(tmp_path, model, held_out=tokens.split(10)) as watch:
        scalars = []
        for _ in range(2):
            for batch in tokens.split(10):
                _, p = model(batch)
                watch.step(p.mean())
            scalars.append(watch.end_epoch())
            nn.init.constant_(model.backbone[0].weight, 0.1)  # all patches in one direction
    assert caplog.text.count("note: held_out: all 9 tokens count as patches") == 1
    first, second = scalars
    assert first["erank/held_out"] == pytest.approx(first["erank/features"], rel=0.05)
    assert first["drift/patches"] == 0
    assert second["drift/patches"] > 0.3
    assert second["erank/patches"] == pytest.approx(1)
    assert {"erank/held_out", "erank/patches"} <= runs.load(tmp_path).untrained.keys()
