"""Loops and models that do what a watch does not expect."""

from __future__ import annotations

import json
import logging
import math

import pytest
import torch
from support.own_models import BYOL, DIM, SimSiam, batches, siamese_step
from torch import nn
from torch.utils.checkpoint import checkpoint

from rdm_solo import report, runs
from rdm_solo.watch import Watch


def epoch(watch: Watch, model: nn.Module, step=siamese_step) -> dict[str, float]:
    for batch in batches():
        watch.step(step(model, batch))
    return watch.end_epoch()


def want(tmp_path, **options) -> dict[str, float]:
    model = SimSiam()
    with Watch(tmp_path / "want", model, **options) as watch:
        return epoch(watch, model)


def test_a_part_that_is_never_called_is_named(tmp_path):
    watch = Watch(tmp_path / "run", BYOL())
    with pytest.raises(
        ValueError, match="nothing was recorded in this step of the target"
    ) as error:
        epoch(watch, watch.module)
    assert "target='projection_head_momentum'" in str(error.value)
    never = Watch(tmp_path / "never", {"student": nn.Identity(), "teacher": nn.Identity()})
    with pytest.raises(ValueError, match="the online and the target branch"):
        never.step()


def test_evaluation_is_not_recorded(tmp_path):
    model = SimSiam()
    with Watch(tmp_path / "run", model) as watch:
        for batch in batches():
            loss = siamese_step(model, batch)
            model.eval()
            model(torch.zeros(50, DIM))
            model.train()
            watch.step(loss)
        assert watch.end_epoch() == want(tmp_path)


def test_a_branch_that_is_called_more_often_counts_with_its_first_rows(tmp_path):
    """The small crops of a student come behind the large ones."""
    model = BYOL()
    found = []
    for crops in (2, 6):
        with Watch(tmp_path / f"{crops}", model, views=2) as watch:
            for batch in batches():
                for view in range(crops):
                    model(batch[view] if view < 2 else torch.randn(10, DIM))
                for view in batch:
                    model.target(view)
                watch.step()
            found.append(watch.end_epoch())
    assert found[0] == found[1]
    assert "erank/positive" in found[0]


def test_widths_that_differ_are_refused(tmp_path):
    model = {"student": nn.Linear(DIM, 8), "teacher": nn.Linear(DIM, 6)}
    watch = Watch(tmp_path / "run", model)
    for part in model.values():
        part(torch.randn(4, DIM))
    with pytest.raises(ValueError, match=r"\(student\) has 8 numbers a row .* \(teacher\) 6"):
        watch.step()


class Gives(nn.Module):
    def __init__(self, make) -> None:
        super().__init__()
        self.net, self.make = nn.Linear(DIM, 8), make

    def forward(self, x):
        return self.make(self.net(x))


@pytest.mark.parametrize(
    "make",
    [
        lambda z: (z, z.mean()),
        lambda z: {"loss": None, "z": z},
        lambda z: [{"z": z}],
        lambda z: z[:, None].expand(-1, 3, -1),
        lambda z: z[:, :, None, None].expand(-1, -1, 2, 2),
    ],
)
def test_tuples_mappings_tokens_and_maps(tmp_path, make):
    torch.manual_seed(0)
    plain, given = Gives(lambda z: z), Gives(make)
    given.load_state_dict(plain.state_dict())
    found = []
    for model in (plain, given):
        with Watch(tmp_path / f"{len(found)}", {"projector": model}) as watch:
            for batch in batches():
                model(batch[0])
                watch.step()
            found.append(watch.end_epoch())
    assert found[1] == pytest.approx(found[0], rel=1e-5, abs=1e-9)


@pytest.mark.parametrize("make", [lambda z: z.mean(), lambda z: None, lambda z: z.long()])
def test_outputs_that_are_no_rows_are_refused(tmp_path, make):
    model = Gives(make)
    Watch(tmp_path / "run", {"projector": model})
    with pytest.raises(ValueError, match=r"where rows \(N, k\), tokens"):
        model(torch.randn(4, DIM))


@pytest.mark.filterwarnings("ignore:.*requires_grad")
@pytest.mark.parametrize("reentrant", [True, False])
def test_a_forward_that_checkpointing_runs_again_counts_once(tmp_path, reentrant):
    model = SimSiam()

    def step(model, batch):
        views = [view.clone().requires_grad_() for view in batch]
        loss = sum(checkpoint(model, v, use_reentrant=reentrant)[1].mean() for v in views)
        loss.backward()
        return 0.0

    with Watch(tmp_path / "run", model) as watch:
        found = epoch(watch, model, step)
    assert {k: v for k, v in want(tmp_path).items() if k != "train/loss"} == {
        k: v for k, v in found.items() if k != "train/loss"
    }


def test_accumulated_batches_are_not_taken_for_views(tmp_path):
    """Two batches of two views before one step: positives stay inside their batch."""
    model = SimSiam()
    with Watch(tmp_path / "each", model, views=2) as watch:
        each = epoch(watch, model)
    with Watch(tmp_path / "accumulated", model, views=2) as watch:
        for number, batch in enumerate(batches()):
            loss = siamese_step(model, batch)
            if number % 2:
                watch.step(loss)
        together = watch.end_epoch()
    for name in ("positive_distance/target", "erank/positive", "lidar/target"):
        assert together[name] == pytest.approx(each[name], rel=1e-9)
    with Watch(tmp_path / "unsaid", model) as watch:
        assert "erank/positive" not in epoch(watch, model)


def test_views_that_do_not_fit_give_no_positives(tmp_path):
    """A single call for both views; a last step with three calls."""
    model = SimSiam()
    with Watch(tmp_path / "one", model, views=2) as watch:
        found = epoch(watch, model, lambda m, batch: m(batch.flatten(0, 1))[1].mean())
        assert "erank/positive" not in found
    with Watch(tmp_path / "last", model, views=2) as watch:
        for batch in batches()[:3]:
            watch.step(siamese_step(model, batch))
        model(batches()[3][0])
        watch.step()
        found = watch.end_epoch()
    assert math.isfinite(found["erank/positive"])
    assert int(watch.spectra.metric.count) == 0  # forgotten with the epoch
    assert runs.load(tmp_path / "last").spectra["rows"].tolist() == [60]


def test_steps_that_nobody_ends_fill_no_memory(tmp_path, caplog):
    model = SimSiam()
    watch = Watch(tmp_path / "run", model, max_rows=20)
    with caplog.at_level(logging.WARNING, "rdm_solo"):
        for batch in batches(50):
            siamese_step(model, batch)
    assert sum(map(len, watch.observer.take_calls().values())) == 0
    (said,) = [r.message for r in caplog.records if "watch.step()" in r.message]
    assert "more than 80 rows" in said
    with caplog.at_level(logging.WARNING, "rdm_solo"):
        watch.end_epoch()
    assert "step() was not called in epoch 1" in caplog.records[-1].message


def test_nan_is_left_out_and_never_dressed_up(tmp_path, caplog):
    model = SimSiam()
    with Watch(tmp_path / "run", model) as watch:
        epoch(watch, model)
        with torch.no_grad():
            model.projection_head.weight[0, 0] = math.nan
        with caplog.at_level(logging.WARNING, "rdm_solo"):
            found = epoch(watch, model)
    assert set(found) == {"train/loss"}
    assert math.isnan(found["train/loss"])
    assert "NaN or infinite" in caplog.text
    run = runs.load(tmp_path / "run")
    assert (run.epochs, run.diverged) == (1, 2)
    assert json.loads((tmp_path / "run/summary.json").read_text())["last"]["train/loss"] is None
    page = report.write([tmp_path / "run"]).read_text()
    assert "diverged in epoch 2" in page


def test_an_epoch_without_a_step_is_a_row_that_says_nothing(tmp_path):
    model = SimSiam()
    with Watch(tmp_path / "run", model) as watch:
        assert watch.end_epoch() == {}
        assert epoch(watch, model) == want(tmp_path)
    assert runs.load(tmp_path / "run").epochs == 2


def test_a_hundred_watches_leave_no_hooks(tmp_path):
    model = SimSiam()
    for number in range(5):
        Watch(tmp_path / f"{number}", model).close()
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())
