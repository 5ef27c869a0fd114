"""Which parts are branches: by the table, by name, and behind wrappers."""

from __future__ import annotations

import pytest
import torch
from support.own_models import BYOL, DIM, SimSiam, batches
from torch import nn

from rdm_solo.callbacks import parts
from rdm_solo.callbacks.branches import ByParts
from rdm_solo.spectra import BranchSpectra
from rdm_solo.watch import Bounds, Watch


class Pair(nn.Module):
    """stable-pretraining's wrapper, by its part names."""

    def __init__(self) -> None:
        super().__init__()
        self.student, self.teacher = nn.Identity(), nn.Identity()


def module(*names: str) -> nn.Module:
    """A module with those parts."""
    made = nn.Module()
    for name in names:
        setattr(made, name.removesuffix("()"), Pair() if name.endswith("()") else nn.Identity())
    return made


# Parts, by the library's own example or class; online, target, whether it ends in a predictor.
KNOWN = {
    "solo-learn SimSiam": ("backbone projector predictor", "predictor", None, True),
    "solo-learn BYOL": (
        *("backbone projector predictor momentum_backbone momentum_projector", "predictor"),
        *("momentum_projector", True),
    ),
    "solo-learn MoCo": (
        *("projector momentum_backbone momentum_projector", "projector"),
        *("momentum_projector", False),
    ),
    "lightly SimSiam": ("backbone projection_head prediction_head", "prediction_head", None, True),
    "lightly BYOL": (
        "backbone projection_head prediction_head backbone_momentum projection_head_momentum",
        *("prediction_head", "projection_head_momentum", True),
    ),
    "lightly SimCLR": ("backbone projection_head", "projection_head", None, False),
    "lightly MoCo": (
        "backbone projection_head backbone_momentum projection_head_momentum",
        *("projection_head", "projection_head_momentum", False),
    ),
    "lightly DINO": (
        "student_backbone student_head teacher_backbone teacher_head",
        *("student_head", "teacher_head", False),
    ),
    "lightly I-JEPA": ("encoder predictor target_encoder", "predictor", "target_encoder", True),
    "stable-pretraining BYOL": (
        *("backbone() projector() predictor", "predictor", "projector.teacher", True),
    ),
    "stable-pretraining DINO": (
        *("backbone() projector()", "projector.student", "projector.teacher", False),
    ),
    "two networks": ("student teacher", "student", "teacher", False),
    "JEPA": ("context_encoder target_encoder", "context_encoder", "target_encoder", False),
}


@pytest.mark.parametrize("known", KNOWN)
def test_the_table_knows_it(known):
    names, *branches = KNOWN[known]
    assert parts.find(module(*names.split())) == tuple(branches)


def test_a_module_without_such_parts_gets_a_sentence(tmp_path):
    with pytest.raises(ValueError, match="no branches were found in Module") as error:
        Watch(tmp_path / "run", module("body"))
    said = str(error.value)
    assert "whose parts are: body" in said
    assert "predictor: predictor, prediction_head" in said
    assert "online='...', target='...'" in said
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("names", "says"),
    [
        (
            {"online": "predicton_head"},
            "online='predicton_head': BYOL has no such part; the nearest are 'prediction_head', "
            "'projection_head'",
        ),
        ({"online": "backbone", "target": "zzz"}, "target='zzz': BYOL has no such part."),
        ({"target": "backbone"}, "give both, online= alone, or neither"),
        ({"online": "prediction_head.7"}, "'prediction_head.7'"),
    ],
)
def test_a_name_that_does_not_exist_is_refused_with_the_nearest(tmp_path, names, says):
    with pytest.raises(ValueError, match=r"online=|target=") as error:
        Watch(tmp_path / "run", BYOL(), **names)
    assert says in str(error.value)


def measured(folder, model: nn.Module, parts: BYOL, **options) -> dict[str, float]:
    with Watch(folder, model, **options) as watch:
        for batch in batches():
            for view in batch:
                parts(view)
                parts.target(view)
            watch.step()
        return watch.end_epoch()


def test_names_by_hand_give_what_the_table_gives(tmp_path):
    by_hand = {"online": "prediction_head", "target": "projection_head_momentum"}
    model = BYOL()
    found = measured(tmp_path / "table", model, model)
    assert measured(tmp_path / "names", model, model, **by_hand) == found
    assert found["erank/online"] != found["erank/target"]


def test_dotted_names_lead_into_a_part(tmp_path):
    model = BYOL()
    last = measured(tmp_path / "last", model, model, online="prediction_head.2")
    whole = measured(tmp_path / "whole", model, model, online="prediction_head")
    assert {k: v for k, v in last.items() if k != "erank/projection"} != {}
    assert last["erank/online"] == whole["erank/online"]


class Wrapped(nn.Module):
    """As DDP and DataParallel hold what they wrap."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.module = inner


@pytest.mark.parametrize("wrap", [Wrapped, nn.DataParallel, lambda m: Wrapped(Wrapped(m))])
@pytest.mark.parametrize("prefix", ["", "module."])
def test_wrappers_are_looked_through(tmp_path, wrap, prefix):
    model = BYOL()
    want = measured(tmp_path / "bare", model, model)
    assert measured(tmp_path / "found", wrap(model), model) == want
    names = {"online": f"{prefix}prediction_head", "target": "projection_head_momentum"}
    assert measured(tmp_path / "named", wrap(model), model, **names) == want


def test_a_part_that_is_wrapped_itself(tmp_path):
    model = SimSiam()
    model.prediction_head = Wrapped(model.prediction_head)
    assert parts.part(model, "prediction_head.0") is model.prediction_head.module[0]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_model_is_measured_as_it_is(tmp_path, backend):
    model = SimSiam()
    results = []
    for forward in (model, torch.compile(model, backend=backend)):
        with Watch(tmp_path / f"{len(results)}", forward) as watch:
            for batch in batches():
                for view in batch:
                    forward(view)
                watch.step()
            results.append(watch.end_epoch())
    assert results[1] == pytest.approx(results[0], rel=1e-5)
    assert results[0]


class TestJEPA:
    """Tokens: a context encoder, its average as target encoder, a predictor of masked tokens."""

    def model(self) -> nn.ModuleDict:
        torch.manual_seed(0)
        names = ("context_encoder", "target_encoder", "predictor")
        return nn.ModuleDict(
            {name: nn.Linear(DIM if "encoder" in name else 8, 8) for name in names}
        )

    def outputs(self, model, batch):
        """Predictions of 3 of 5 tokens, from the other two; the targets of all 5."""
        tokens = batch.repeat_interleave(5, 0).reshape(2 * 10, 5, DIM)
        tokens = tokens + torch.randn(5, DIM, generator=torch.Generator().manual_seed(1))
        context = model["context_encoder"](tokens[:, :2]).mean(1, keepdim=True)
        predicted = model["predictor"](context + tokens[:, 2:, :8])
        with torch.no_grad():
            return predicted, model["target_encoder"](tokens), context + tokens[:, 2:, :8]

    @pytest.mark.parametrize("tokens", ["mean", "rows"])
    def test_tokens_are_averaged_or_rows(self, tmp_path, tokens):
        model = self.model()
        want = BranchSpectra(8, steps=True)
        with Watch(tmp_path / "run", model, tokens=tokens) as watch:
            assert watch.observer.branches == ("predictor", "target_encoder", True)
            for batch in batches():
                predicted, targets, context = self.outputs(model, batch.flatten(0, 1))
                rows = [
                    x.mean(1) if tokens == "mean" else x.flatten(0, 1)[: 20 * 3]
                    for x in (predicted, targets, context)
                ]
                want.update(online=rows[0], target=rows[1], projection=rows[2])
                watch.step()
            found = watch.end_epoch()
        assert found == want.compute().scalars

    def test_outputs_that_depend_on_their_place_alone_have_collapsed(self, tmp_path):
        """As rows, tokens of one image look like images."""
        model = {"projector": nn.Identity()}
        places = torch.randn(5, 8, generator=torch.Generator().manual_seed(1))
        bounds = Bounds(warmup=0)
        for tokens, collapsed in (("mean", ["complete collapse"]), ("rows", [])):
            with Watch(tmp_path / tokens, model, tokens=tokens, bounds=bounds) as watch:
                for _ in range(2):
                    watch_all = places.expand(16, 5, 8)
                    model["projector"](watch_all)
                    watch.step()
                    watch.end_epoch()
                assert watch.collapsed == collapsed

    def test_another_word_is_refused(self, tmp_path):
        with pytest.raises(ValueError, match="tokens must be one of mean, rows"):
            Watch(tmp_path / "run", self.model(), tokens="row")


def test_a_teacher_may_be_in_evaluation_mode_for_good(tmp_path):
    model = BYOL()
    want = measured(tmp_path / "train", model, model)
    model.backbone_momentum.eval()
    model.projection_head_momentum.eval()
    assert measured(tmp_path / "eval", model, model) == want


def test_diagnostics_use_the_same_table():
    from rdm_solo.callbacks.branches import observer

    found = observer(BYOL())
    assert isinstance(found, ByParts)
    assert found.branches.target == "projection_head_momentum"
