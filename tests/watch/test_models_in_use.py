"""Models that are copied, saved, validated, replaced or watched twice while they are watched."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from support.own_models import DIM, SimSiam, batches, siamese_step
from torch import nn

from rdm_solo.callbacks.branches import observer
from rdm_solo.watch import Watch


def measured(folder, model, between=lambda: None, epochs: int = 2, **options) -> dict[str, float]:
    """The last epoch's scalars; ``between`` runs after each step and before each epoch's end."""
    with Watch(folder, model, views=2, **options) as watch:
        for _ in range(epochs):
            for batch in batches():
                loss = siamese_step(model, batch)
                between()
                watch.step(loss)
            between()
            found = watch.end_epoch()
    return found


@pytest.fixture
def want(tmp_path) -> dict[str, float]:
    return measured(tmp_path / "want", SimSiam())


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_a_copy_of_the_model_is_not_the_model(tmp_path, want, mode):
    """Such as an average of its weights, made after the watch, that is used in each step."""
    model = SimSiam()
    watch = Watch(tmp_path / "run", model, views=2)
    average = getattr(copy.deepcopy(model), mode)()
    for _ in range(2):
        for batch in batches():
            loss = siamese_step(model, batch)
            siamese_step(average, batch.flip(1))
            watch.step(loss)
        siamese_step(average, batch)
        found = watch.end_epoch()
    assert found == want


def test_a_watched_model_can_be_saved(tmp_path, want):
    model, file = SimSiam(), io.BytesIO()
    assert measured(tmp_path / "run", model, lambda: torch.save(model, file)) == want
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    x = torch.randn(3, DIM)
    torch.testing.assert_close(loaded(x), model(x))


def test_what_is_called_between_two_steps_is_not_recorded(tmp_path):
    """A validation that leaves a part in training mode, after the last step of an epoch."""
    found = []
    for validated in (False, True):
        model = SimSiam()
        with Watch(tmp_path / f"{validated}", model, views=2) as watch:
            for _ in range(2):
                for batch in batches():
                    watch.step(siamese_step(model, batch))
                if validated:
                    model(torch.zeros(7, DIM))
                last = watch.end_epoch()
        found.append(last)
    assert found[0] == found[1]


def test_outputs_count_as_they_were_given(tmp_path):
    """Whatever overwrites them afterwards, as an nn.ReLU(inplace=True) does."""
    found = []
    for inplace in (False, True):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(DIM, 8), nn.ReLU(inplace=inplace), nn.Linear(8, 8))
        with Watch(tmp_path / f"{inplace}", net, online="0") as watch:
            for batch in batches():
                net(batch[0])
                watch.step()
            found.append(watch.end_epoch())
    assert found[0] == found[1]


def test_inputs_count_as_they_came(tmp_path):
    """Of a predictor that overwrites them."""
    found = []
    for inplace in (False, True):
        model = SimSiam()
        model.prediction_head.insert(0, nn.Tanh())
        model.prediction_head.insert(0, nn.ReLU(inplace=inplace))
        with Watch(tmp_path / f"{inplace}", model) as watch:
            for batch in batches():
                model(batch[0])
                watch.step()
            found.append(watch.end_epoch())
    assert found[0] == found[1]


def test_a_part_that_was_replaced_is_said_once(tmp_path, caplog):
    model = SimSiam()
    with Watch(tmp_path / "run", model) as watch:
        for replaced in (False, True, True):
            if replaced:
                model.projection_head = nn.Linear(16, 8)
                model.prediction_head = nn.Linear(8, 8)
            for batch in batches():
                watch.step(siamese_step(model, batch))
            found = watch.end_epoch()
            assert ("erank/online" in found) is not replaced
    assert caplog.text.count("no step of epoch 2 could be measured") == 1
    assert "could be measured" not in caplog.text.replace("no step of epoch 2 could", "")


def test_a_logger_that_fails_leaves_the_epoch_whole(tmp_path):
    def fails(scalars, epoch) -> None:
        raise ConnectionError("no network")

    model = SimSiam()
    with Watch(tmp_path / "run", model, log=fails) as watch:
        for epoch in (1, 2):
            assert watch.epoch == epoch
            for batch in batches():
                watch.step(siamese_step(model, batch))
            with pytest.raises(ConnectionError):
                watch.end_epoch()
        assert [row["epoch"] for row in watch.folder.rows] == [1, 2]


def test_a_closed_watch_writes_no_more(tmp_path):
    model = SimSiam()
    watch = Watch(tmp_path / "run", model)
    with pytest.raises(ValueError, match=r"this process itself is writing to .*: close what does"):
        Watch(tmp_path / "run", model)
    watch.close()
    for use in (watch.step, watch.end_epoch):
        with pytest.raises(ValueError, match="is closed: make another one, with resume=True"):
            use()
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize("resume", [-1, 1.5, None, "yes"])
def test_what_is_no_epoch_to_go_on_from_is_refused(tmp_path, resume):
    model = SimSiam()
    measured(tmp_path / "run", model)
    before = (tmp_path / "run" / "metrics.csv").read_bytes()
    with pytest.raises(ValueError, match="resume must be a whole number of at least 0, or True"):
        Watch(tmp_path / "run", model, resume=resume)
    assert (tmp_path / "run" / "metrics.csv").read_bytes() == before


def test_after_epoch_0_is_from_the_beginning(tmp_path):
    """As loops write it that begin with the epoch of a checkpoint, if there is one."""
    with Watch(tmp_path / "run", SimSiam(), resume=0) as watch:
        assert watch.epoch == 1
        siamese_step(watch.module, batches()[0])
        watch.step()
        watch.end_epoch()
    with pytest.raises(ValueError, match="holds a run"):
        Watch(tmp_path / "run", SimSiam(), resume=0)


def test_a_call_that_fails_leaves_no_input_behind(tmp_path):
    """Such as one that had no memory, and is made again."""

    class Fails(nn.Linear):
        fails = True

        def forward(self, x):
            self.fails = not self.fails
            if not self.fails:
                raise MemoryError
            return super().forward(x)

    model = nn.ModuleDict({"projector": nn.Linear(DIM, 8), "predictor": Fails(8, 8)})
    with Watch(tmp_path / "run", model, views=1) as watch:
        for batch in batches():
            z = model["projector"](batch[0])
            with pytest.raises(MemoryError):
                model["predictor"](z + 1)
            model["predictor"](z)
            calls = {name: len(each) for name, each in watch.observer._recorded.items()}
            watch.step()
        assert calls == {"online": 1, "target": 1}


class Nearest(nn.Module):
    """The names of a method whose target is found among earlier outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.projector, self.predictor = nn.Linear(4, 3), nn.Linear(3, 3)
        self.register_buffer("queue", torch.eye(3))

    def find_nn(self, z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found = (z @ self.queue.T).argmax(1)
        return found, self.queue[found]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = self.projector(x)
        self.predictor(z)
        return self.find_nn(z)[1]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_two_observers_of_one_method_leave_it_as_it_was(order):
    model, x = Nearest(), torch.randn(5, 4)
    both = [observer(model), observer(model)]
    for one in both:
        one.record_next_step()
    target = model(x)
    for one in both:
        assert torch.equal(one.take().target, target)
    for number in order:
        both[number].detach()
        assert torch.equal(model(x), target)
    both[0].record_next_step()
    model(x)
    assert torch.equal(both[0].take().target, target)
    both[0].detach()


def test_what_a_user_has_put_in_the_methods_place_is_called_and_stays():
    model, x = Nearest(), torch.randn(5, 4)
    own = model.find_nn = lambda z: (None, torch.full_like(z, 7.0))
    recorder = observer(model)
    recorder.record_next_step()
    assert (model(x) == 7).all()
    assert (recorder.take().target == 7).all()
    recorder.detach()
    assert model.find_nn is own
    recorder.record_next_step()
    del model.find_nn
    recorder.detach()
    assert "find_nn" not in vars(model)


def test_a_copy_of_a_method_with_a_queue_uses_its_own():
    model, x = Nearest(), torch.randn(5, 4)
    recorder = observer(model)
    recorder.record_next_step()
    other = copy.deepcopy(model)
    other.queue.zero_()
    assert not other(x).any()
    assert "target" not in recorder.take_calls()


def test_fabric_is_looked_through(tmp_path, want):
    from lightning.fabric import Fabric

    model = Fabric(accelerator="cpu", devices=1).setup(SimSiam())
    watch = Watch(tmp_path / "run", model, views=2)
    for _ in range(2):
        for batch in batches():
            watch.step(siamese_step(model, batch))
        found = watch.end_epoch()
    watch.close()
    assert found == want
    assert watch.alarm.bounds.gap_epochs  # as SimSiam's target should lead


def test_an_epoch_that_is_longer_than_the_one_before_keeps_to_its_room(tmp_path):
    """10 rows a step in each of two views, and room for 100."""
    model = SimSiam()
    with Watch(tmp_path / "run", model, max_rows=100) as watch:
        for steps in (2, 40):
            for batch in batches(steps):
                watch.step(siamese_step(model, batch))
            counted = watch.spectra._steps
            watch.end_epoch()
    assert counted == 5
