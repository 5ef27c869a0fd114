"""Parts are found by the table of names, and tokens of a JEPA become rows."""

import pytest
import torch
from support.own_models import DIM, batches
from torch import nn

from rdm_solo.ground.errors import UserError
from rdm_solo.observe import parts
from rdm_solo.observe.branches import Branches
from rdm_solo.spectra import BranchSpectra
from rdm_solo.watch import Watch


def module(*names):
    """Return a module with these parts; ``()`` stands for stable-pretraining's wrapper."""
    model = nn.Module()
    for name in names:
        part = nn.Identity()
        if name.endswith("()"):
            part = module("student", "teacher")
        *containers, name = name.removesuffix("()").split(".")
        parent = model
        for container in containers:
            if not hasattr(parent, container):
                setattr(parent, container, nn.Module())
            parent = getattr(parent, container)
        setattr(parent, name, part)
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
        ("student teacher head", "student", "teacher"),
        ("encoder proj pred", "pred", None),
        ("backbone projection_mlp prediction_mlp", "prediction_mlp", None),
        ("encoder proj", "proj", None),
        ("encoder proj head", "proj", None),
        ("encoder head", "head", None),
        ("base_encoder momentum_encoder predictor", "predictor", "momentum_encoder"),
        ("encoder_q encoder_k", "encoder_q", "encoder_k"),
        (
            "student.backbone student.dino_head teacher.backbone teacher.dino_head",
            "student.dino_head",
            "teacher.dino_head",
        ),
        (
            "student_head.dino_head.last_layer teacher_head.dino_head.last_layer",
            "student_head.dino_head.last_layer",
            "teacher_head.dino_head.last_layer",
        ),
    ],
)
def test_the_table_of_names_finds_the_branches(names, online, target):
    model = module(*names.split())
    predictor = online in ("predictor", "pred", "prediction_mlp")
    assert parts.find(model) == (online, target, predictor)


@pytest.mark.parametrize(
    ("online", "target", "outputs"),
    [
        ("projector.student", "projector.teacher", 64),
        ("cls_head", "ema_cls_head", 64),
        ("student.my_head", "teacher.my_head", 64),
        ("encoder", "target_encoder", None),  # a classifier of 64 classes
        ("student_head", None, None),
    ],
)
def test_prototypes_are_those_of_a_head_with_a_teacher(online, target, outputs):
    model = module(*filter(None, (online, target)))
    container, _, name = online.rpartition(".")
    setattr(model.get_submodule(container), name, nn.Linear(8, 64))
    assert parts.prototypes(model, Branches(online, target, False)) == outputs


def test_a_classifier_without_an_encoder_is_no_branch():
    assert parts.find(module("blocks", "norm", "head")) is None


@pytest.mark.parametrize(
    ("names", "online", "predictor"),
    [
        ("encoder proj pred", "pred", True),
        ("encoder proj", "proj", False),
        ("encoder proj proj.net", "proj.net", False),
        ("encoder body", "body", False),
    ],
)
def test_with_online_alone_the_target_is_its_input_or_its_output(names, online, predictor):
    assert parts.by_name(module(*names.split()), online) == (online, None, predictor)


@pytest.mark.parametrize(
    ("names", "online", "candidates"),
    [
        ("encoder proj q", "q", "proj"),
        ("backbone projection_head head", "head", "projection_head"),
        ("encoder projector momentum_projector", "projector", "momentum_projector"),
    ],
)
def test_a_part_is_compared_with_itself_only_on_request(names, online, candidates):
    model = module(*names.split())
    with pytest.raises(UserError, match=rf"has {candidates}\."):
        parts.by_name(model, online)
    assert parts.by_name(model, online, online) == (online, None, False)


@pytest.mark.parametrize(
    ("names", "options", "expected"),
    [
        ("encoder proj pred", {}, ["online='pred'", "input", "backbone='encoder'"]),
        ("body proj", {}, ["online='proj'", "output", "no features"]),
        ("body teacher", {"online": "body", "target": "teacher"}, ["target='teacher'"]),
        ("encoder proj", {"backbone": "proj"}, ["backbone='proj'"]),
    ],
)
def test_a_watch_says_what_it_watches(tmp_path, caplog, names, options, expected):
    Watch(tmp_path, module(*names.split()), **options).close()
    (record,) = caplog.records
    for text in expected:
        assert text in record.message


@pytest.mark.parametrize("tokens", ["mean", "rows"])
def test_tokens_of_a_jepa_are_averaged_or_rows(tmp_path, tokens):
    """Predictions of 3 of 5 tokens from the other two; targets of all 5."""
    torch.manual_seed(0)
    context_encoder = nn.Linear(DIM, 8)
    target_encoder = nn.Linear(DIM, 8)
    predictor = nn.Linear(8, 8)
    model = {
        "context_encoder": context_encoder,
        "target_encoder": target_encoder,
        "predictor": predictor,
    }
    metric = BranchSpectra(8, steps=True)
    with Watch(tmp_path, model, tokens=tokens, max_features_dim=0) as watch:
        for batch in batches():
            images = batch.flatten(0, 1)
            x = images[:, None] + torch.randn(5, DIM)
            visible = context_encoder(x[:, :2])
            context = visible.mean(1, keepdim=True) + x[:, 2:, :8]
            outputs = predictor(context), target_encoder(x), context
            watch.step()
            if tokens == "mean":
                expected = [output.mean(1) for output in outputs]
            else:
                expected = [output.flatten(0, 1)[:60] for output in outputs]
            online, target, projection = expected
            metric.update(online, target, projection=projection)
        assert watch.end_epoch() == metric.compute().scalars
