"""Models that are copied, saved, replaced or called in other ways than once per view and step."""

import copy
import io

import pytest
import torch
from support.own_models import BYOL, DIM, SimSiam, batches, siamese_step, watched_epoch
from torch import nn
from torch.utils.checkpoint import checkpoint

from rdm_solo import runs
from rdm_solo.ground.errors import UserError
from rdm_solo.watch import Watch


def measured(folder, model: nn.Module, step=siamese_step, **options) -> dict[str, float]:
    """Return the scalars of the second epoch, without the loss."""
    with Watch(folder, model, views=2, **options) as watch:
        for _ in range(2):
            row = watched_epoch(watch, model, step)
    row.pop("train/loss", None)
    return row


@pytest.fixture
def expected(tmp_path) -> dict[str, float]:
    return measured(tmp_path / "expected", SimSiam())


def evaluate(model: nn.Module) -> None:
    model.eval()
    model(torch.zeros(50, DIM))
    model.train()


def save(model: nn.Module) -> None:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded, x = torch.load(file, weights_only=False), torch.randn(3, DIM)
    torch.testing.assert_close(loaded(x), model(x))


def call_copy(model: nn.Module) -> None:
    siamese_step(copy.deepcopy(model), torch.ones(2, 5, DIM))


@pytest.mark.parametrize("extra", [evaluate, save, call_copy])
def test_calls_that_belong_to_no_step_are_not_recorded(tmp_path, expected, extra):
    model = SimSiam()

    def step(model, batch):
        loss = siamese_step(model, batch)
        if extra is not save:
            extra(model)
        return loss

    with Watch(tmp_path / "run", model, views=2) as watch:
        for _ in range(2):
            for batch in batches():
                watch.step(step(model, batch))
            extra(model)  # before the epoch ends
            row = watch.end_epoch()
    assert row.pop("train/loss")
    assert row == expected


@pytest.mark.filterwarnings("ignore:.*requires_grad")
@pytest.mark.parametrize("reentrant", [True, False])
def test_a_forward_that_checkpointing_repeats_counts_once(tmp_path, expected, reentrant):
    def step(model, batch):
        views = [view.clone().requires_grad_() for view in batch]
        sum(checkpoint(model, v, use_reentrant=reentrant)[1].mean() for v in views).backward()

    assert measured(tmp_path / "run", SimSiam(), step) == expected


def test_outputs_and_inputs_count_as_they_were_when_something_overwrites_them(tmp_path):
    for number, (place, options) in enumerate(((0, {}), (1, {"online": "prediction_head.0"}))):
        results = []
        for inplace in (False, True):
            model = SimSiam()
            model.prediction_head.insert(place, nn.ReLU(inplace=inplace))
            results.append(measured(tmp_path / f"{number}_{inplace}", model, **options))
        assert results[0] == results[1]


def test_a_part_that_was_replaced_raises_a_warning(tmp_path, caplog):
    model = SimSiam()
    with Watch(tmp_path / "run", model) as watch:
        assert "erank/online" in watched_epoch(watch, model)
        assert "was measured" not in caplog.text
        model.projection_head, model.prediction_head = nn.Linear(16, 8), nn.Linear(8, 8)
        assert "erank/online" not in watched_epoch(watch, model)
    assert "no step of epoch 2 was measured" in caplog.text


def test_a_part_that_is_never_called_is_named(tmp_path):
    watch = Watch(tmp_path / "run", BYOL())
    with pytest.raises(UserError, match="target='projection_head_momentum'"):
        watched_epoch(watch, watch.module)


def test_the_branch_with_more_rows_counts_with_its_first_ones(tmp_path):
    """The small crops of a student come after the large ones."""
    model, results = BYOL(), []
    for crops in (0, 4):
        with Watch(tmp_path / f"{crops}", model, views=2) as watch:
            for batch in batches():
                for view in batch:
                    model.target(view)
                for view in [*batch, *torch.randn(crops, 10, DIM)]:
                    model(view)
                watch.step()
            results.append(watch.end_epoch())
    assert results[0] == results[1]
    assert "erank/positive" in results[0]


def test_accumulated_batches_are_not_taken_for_views(tmp_path):
    """Call two batches of two views before one step: positives stay inside their batch."""
    model, results = SimSiam(), []
    for every in (1, 2):
        with Watch(tmp_path / f"{every}", model, views=2) as watch:
            for number, batch in enumerate(batches(), 1):
                loss = siamese_step(model, batch)
                if number % every == 0:
                    watch.step(loss)
            results.append(watch.end_epoch())
    for name in ("positive_distance/target", "erank/positive", "lidar/target"):
        assert results[1][name] == pytest.approx(results[0][name], rel=1e-9)


def test_views_that_cannot_be_told_apart_give_no_positives(tmp_path):
    def in_one_call(model, batch):
        return model(batch.flatten(0, 1))[1].mean()

    assert "erank/positive" not in measured(tmp_path / "one", SimSiam(), in_one_call)
    model = SimSiam()
    with Watch(tmp_path / "last", model, views=2) as watch:
        for batch in batches()[:3]:
            watch.step(siamese_step(model, batch))
        model(batches()[3][0])  # a last step with one view is left out
        watch.step()
        assert watch.end_epoch()["erank/positive"] > 1
    assert runs.load(tmp_path / "last").spectra["rows"].tolist() == [60]


class Returning(nn.Linear):
    """Returns its outputs in a form."""

    def __init__(self, form) -> None:
        torch.manual_seed(0)
        super().__init__(DIM, 8)
        self.form = form

    def forward(self, x):
        return self.form(super().forward(x))


@pytest.mark.parametrize(
    "form",
    [
        lambda z: (z, z.mean()),
        lambda z: {"loss": None, "z": z},
        lambda z: [{"z": z}],
        lambda z: z[:, None].expand(-1, 3, -1),
        lambda z: z[:, :, None, None].expand(-1, -1, 2, 2),
    ],
)
def test_tuples_mappings_tokens_and_maps(tmp_path, form):
    results = []
    for number, model in enumerate((Returning(lambda z: z), Returning(form))):
        with Watch(tmp_path / f"{number}", {"projector": model}) as watch:
            model(batches()[0][0])
            watch.step()
            results.append(watch.end_epoch())
    assert results[1] == pytest.approx(results[0], rel=1e-5, abs=1e-9)


@pytest.mark.parametrize("form", [lambda z: z.mean(), lambda z: None, lambda z: z.long()])
def test_outputs_that_are_no_rows_are_refused(tmp_path, form):
    model = Returning(form)
    Watch(tmp_path / "run", {"projector": model})
    with pytest.raises(UserError, match="rows"):
        model(torch.randn(4, DIM))


def test_widths_that_differ_are_refused(tmp_path):
    model = {"student": nn.Linear(DIM, 8), "teacher": nn.Linear(DIM, 6)}
    watch = Watch(tmp_path / "run", model)
    for part in model.values():
        part(torch.randn(4, DIM))
    with pytest.raises(UserError, match="8 dimensions"):
        watch.step()


def test_fabric_is_unwrapped(tmp_path, expected):
    from lightning.fabric import Fabric

    model = Fabric(accelerator="cpu", devices=1).setup(SimSiam())
    assert measured(tmp_path / "run", model) == expected
