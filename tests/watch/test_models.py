"""Models that are copied, saved, replaced or called in other ways than once per view and step."""

import copy
import io

import pytest
import torch
from lightning.fabric import Fabric
from support.own_models import BYOL, DIM, SimSiam, siamese_step, watched_epoch
from torch import nn
from torch.utils.checkpoint import checkpoint

from rdm_solo.ground.errors import UserError
from rdm_solo.watch import Watch

ONES = torch.ones(2, 5, DIM)


def watch_two_epochs(folder, model, step=siamese_step, **options):
    """Return the scalars of the second epoch, without the loss."""
    with Watch(folder, model, views=2, **options) as watch:
        watched_epoch(watch, model, step)
        row = watched_epoch(watch, model, step)
    row.pop("train/loss", None)
    return row


@pytest.fixture
def expected(tmp_path):
    return watch_two_epochs(tmp_path / "expected", SimSiam())


def evaluate(model):
    model.eval()
    siamese_step(model, ONES)
    model.train()


def call_copy(model):
    siamese_step(copy.deepcopy(model), ONES)


def call_saved_copy(model):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    copied = torch.load(file, weights_only=False)
    siamese_step(copied, ONES)


@pytest.mark.parametrize("extra_call", [evaluate, call_copy, call_saved_copy])
def test_calls_that_belong_to_no_step_are_not_recorded(tmp_path, expected, extra_call):
    def step(model, batch):
        loss = siamese_step(model, batch)
        extra_call(model)
        return loss

    assert watch_two_epochs(tmp_path / "run", SimSiam(), step) == expected


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_forward_that_checkpointing_repeats_counts_once(tmp_path, expected, reentrant):
    def step(model, batch):
        for view in batch:
            x = view.clone().requires_grad_()
            _, p = checkpoint(model, x, use_reentrant=reentrant)
            p.mean().backward()

    assert watch_two_epochs(tmp_path / "run", SimSiam(), step) == expected


@pytest.mark.parametrize(("place", "online"), [(0, "prediction_head"), (1, "prediction_head.0")])
def test_a_module_that_works_in_place_does_not_change_what_is_recorded(tmp_path, place, online):
    """It overwrites the inputs or the outputs of the online part."""

    def scalars(inplace):
        model = SimSiam()
        model.prediction_head.insert(place, nn.ReLU(inplace))
        target = None if place == 0 else online
        return watch_two_epochs(tmp_path / f"{inplace}", model, online=online, target=target)

    assert scalars(inplace=True) == scalars(inplace=False)


def test_a_part_that_was_replaced_raises_a_warning(tmp_path, caplog):
    model = SimSiam()
    with Watch(tmp_path, model) as watch:
        watched_epoch(watch, model)
        assert "warning: " not in caplog.text
        model.prediction_head = nn.Linear(8, 8)
        assert "erank/online" not in watched_epoch(watch, model)
    assert "no step of epoch 2" in caplog.text


def test_a_part_that_is_never_called_is_named(tmp_path):
    watch = Watch(tmp_path, BYOL())
    with pytest.raises(UserError, match="projection_head_momentum"):
        watched_epoch(watch, watch.module)


def nested(model):
    return nn.DataParallel(nn.DataParallel(model))


def compiled(model):
    return torch.compile(model, backend="eager")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("wrap", "options"),
    [
        (nested, {}),
        (nested, {"online": "prediction_head"}),
        (nested, {"online": "module.prediction_head"}),
        (compiled, {}),
        (Fabric(accelerator="cpu", devices=1).setup, {}),
    ],
)
def test_parts_are_found_behind_wrappers(tmp_path, expected, wrap, options):
    model = wrap(SimSiam())
    assert watch_two_epochs(tmp_path / "run", model, **options) == expected


def test_a_teacher_may_always_be_in_evaluation_mode(tmp_path):
    def step(model, batch):
        for view in batch:
            model(view)
            model.target(view)

    def scalars(training):
        model = BYOL()
        model.backbone_momentum.train(training)
        model.projection_head_momentum.train(training)
        return watch_two_epochs(tmp_path / f"{training}", model, step)

    expected = scalars(training=True)
    assert expected["erank/online"] != expected["erank/target"]
    assert scalars(training=False) == expected
