"""Which parts are branches: by the table, by name, and behind wrappers; how outputs become rows."""

import pytest
import torch
from support.own_models import BYOL, DIM, SimSiam, batches, watched_epoch
from torch import nn

from rdm_solo.ground.errors import UserError
from rdm_solo.observe import parts
from rdm_solo.spectra import BranchSpectra
from rdm_solo.watch import Watch


def module(*names: str) -> nn.Module:
    """Return a module with these parts; ``()`` stands for stable-pretraining's wrapper."""
    model = nn.Module()
    for name in names:
        pair = nn.ModuleDict({"student": nn.Identity(), "teacher": nn.Identity()})
        setattr(model, name.removesuffix("()"), pair if name.endswith("()") else nn.Identity())
    return model


@pytest.mark.parametrize(
    ("names", "online", "target"),
    [
        ("backbone projector predictor momentum_projector", "predictor", "momentum_projector"),
        ("backbone projection_head", "projection_head", None),
        ("student_backbone student_head teacher_head", "student_head", "teacher_head"),
        ("encoder predictor target_encoder", "predictor", "target_encoder"),
        ("backbone() projector() predictor", "predictor", "projector.teacher"),
        ("backbone() projector()", "projector.student", "projector.teacher"),
        ("student teacher", "student", "teacher"),
    ],
    ids=["BYOL", "SimCLR", "DINO", "I-JEPA", "wrapped-BYOL", "wrapped-DINO", "networks"],
)
def test_the_table_of_names_finds_the_branches(names, online, target):
    assert parts.find(module(*names.split())) == (online, target, online == "predictor")


@pytest.mark.parametrize(
    ("model", "names", "message"),
    [
        (module("body"), {}, "body"),
        (BYOL(), {"online": "predicton_head"}, "did you mean 'prediction_head'"),
        (BYOL(), {"target": "backbone"}, "online="),
        (BYOL(), {"tokens": "row"}, "tokens"),
    ],
)
def test_a_part_that_is_not_there_is_refused(tmp_path, model, names, message):
    with pytest.raises(UserError, match=message):
        Watch(tmp_path / "run", model, **names)
    assert not (tmp_path / "run").exists()


def measured(folder, model: nn.Module, parts: BYOL, **options) -> dict[str, float]:
    def step(parts, batch):
        for view in batch:
            parts(view)
            parts.target(view)

    with Watch(folder, model, **options) as watch:
        return watched_epoch(watch, parts, step)


class Wrapped(nn.Module):
    """Holds a module as DDP and DataParallel do."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.module = inner


@pytest.mark.parametrize("prefix", ["", "module."])
def test_names_by_hand_and_wrappers_give_what_the_table_gives(tmp_path, prefix):
    model = BYOL()
    expected = measured(tmp_path / "bare", model, model)
    assert expected["erank/online"] != expected["erank/target"]
    wrapped = Wrapped(Wrapped(model))
    assert measured(tmp_path / "wrapped", wrapped, model) == expected
    names = {"online": f"{prefix}prediction_head", "target": "projection_head_momentum"}
    assert measured(tmp_path / "named", wrapped, model, **names) == expected


@pytest.mark.filterwarnings("ignore")
def test_a_compiled_model_is_measured_as_it_is(tmp_path):
    model = SimSiam()
    with Watch(tmp_path / "eager", model) as watch:
        expected = watched_epoch(watch, model)
    compiled = torch.compile(model, backend="eager")
    with Watch(tmp_path / "compiled", compiled) as watch:
        assert watched_epoch(watch, compiled) == pytest.approx(expected, rel=1e-5)


def test_a_teacher_may_always_be_in_evaluation_mode(tmp_path):
    model = BYOL()
    expected = measured(tmp_path / "train", model, model)
    model.backbone_momentum.eval()
    model.projection_head_momentum.eval()
    assert measured(tmp_path / "eval", model, model) == expected


@pytest.mark.parametrize("tokens", ["mean", "rows"])
def test_tokens_of_a_jepa_are_averaged_or_rows(tmp_path, tokens):
    """Predictions of 3 of 5 tokens from the other two; targets of all 5."""
    torch.manual_seed(0)
    widths = {"context_encoder": DIM, "target_encoder": DIM, "predictor": 8}
    model = nn.ModuleDict({name: nn.Linear(width, 8) for name, width in widths.items()})
    metric = BranchSpectra(8, steps=True)
    with Watch(tmp_path / "run", model, tokens=tokens, max_features_dim=0) as watch:
        assert watch.recorder.observer.branches == ("predictor", "target_encoder", True)
        for batch in batches():
            x = batch.flatten(0, 1)[:, None] + torch.randn(5, DIM)
            context = model["context_encoder"](x[:, :2]).mean(1, keepdim=True) + x[:, 2:, :8]
            outputs = [model["predictor"](context), model["target_encoder"](x), context]
            watch.step()
            if tokens == "mean":
                online, target, projection = (y.mean(1) for y in outputs)
            else:
                online, target, projection = (y.flatten(0, 1)[: 20 * 3] for y in outputs)
            metric.update(online, target, projection=projection)
        assert watch.end_epoch() == metric.compute().scalars
