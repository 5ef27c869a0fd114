"""What is recorded of both branches: of our methods, of solo-learn's own, of anyone's."""

import contextlib

import numpy as np
import pytest
import torch
from support.device_runs import Accelerator
from support.second_device import DEVICE, without_float64
from support.small_methods import batch, foreign, loss_of, make
from support.small_runs import SILENT, all_rows
from torch import nn
from torch.nn.functional import normalize
from torch.utils.data import DataLoader

from rdm_solo.callbacks import Diagnostics, EpochTable
from rdm_solo.ground.errors import UserError
from rdm_solo.ground.lightning import pl
from rdm_solo.methods import solo_learn
from rdm_solo.methods.descriptions import METHODS
from rdm_solo.observe.branches import Observer
from rdm_solo.observe.outputs import Outputs
from rdm_solo.observe.parts import observer
from rdm_solo.runs import spectra_files
from rdm_solo.spectra import BranchSpectra, effective_rank


def step(model, data=None) -> tuple[Observer, Outputs]:
    """Record one training step."""
    recorder = observer(model)
    recorder.record_next_step()
    loss_of(model, data or batch())
    recorded = recorder.pop_outputs(2)
    recorder.detach()
    return recorder, recorded


def logits_of(recorder: Observer, recorded: Outputs) -> torch.Tensor:
    weight = recorder.weight()
    torch.testing.assert_close(weight.norm(dim=1), torch.ones(len(weight)))  # weight-normed
    return recorded.hidden @ weight.T


def test_swav_is_recorded_as_its_softmax_and_its_assignment():
    model = make("method=swav", "method.kwargs.num_prototypes=24")
    solo_learn.add_sinkhorn(model)
    data = batch()
    recorder, recorded = step(model, data)
    online, target, positive, projection, *_ = recorded
    with torch.no_grad():
        logits = [model.prototypes(normalize(model.projector(model.backbone(x)))) for x in data[1]]
    want = torch.cat([(x / 0.1).softmax(1) for x in logits])
    torch.testing.assert_close(online, want, rtol=1e-4, atol=1e-6)
    assert projection is online
    torch.testing.assert_close(
        logits_of(recorder, recorded), torch.cat(logits), rtol=1e-4, atol=1e-5
    )
    # Sinkhorn's assignment: exp(logits / eps), columns and rows scaled to equal sums, by hand.
    assigned = []
    for x in logits:
        q = (x.double() / 0.05).exp()
        for _ in range(3):
            q = q / q.sum(0, keepdim=True) / q.shape[1]
            q = q / q.sum(1, keepdim=True) / q.shape[0]
        assigned.append(q * len(q))
    torch.testing.assert_close(target.double(), torch.cat(assigned), rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(target.sum(1), torch.ones(32))
    assert torch.equal(positive, target.roll(16, 0))
    assert not recorder.normalize


def test_dino_is_recorded_before_its_centre_moves():
    model = make("method=dino", "method.kwargs.num_prototypes=24")
    nn.init.normal_(model.momentum_head.last_layer.weight_v)  # which starts as a copy of the other
    loss = model.dino_loss_func
    loss.center += torch.randn(24, generator=torch.Generator().manual_seed(3))
    center = loss.center.clone()
    data = batch()
    recorder, recorded = step(model, data)
    online, target, positive, projection, *_ = recorded
    assert not torch.equal(center, loss.center)
    with torch.no_grad():
        student = torch.cat([model.head(model.backbone(x)) for x in data[1]])
        teacher = torch.cat([model.momentum_head(model.momentum_backbone(x)) for x in data[1]])
    sharp = float(loss.teacher_temp_schedule[0])
    close = {"rtol": 1e-4, "atol": 1e-6}
    torch.testing.assert_close(online, (student / 0.1).softmax(1), **close)
    torch.testing.assert_close(target, ((teacher - center) / sharp).softmax(1), **close)
    assert projection is online
    torch.testing.assert_close(logits_of(recorder, recorded), student, rtol=1e-4, atol=1e-5)
    assert torch.equal(positive, target.roll(16, 0))
    assert not recorder.normalize


@pytest.mark.parametrize(
    ("options", "centred", "temperature"),
    [
        ([], True, 0.07),
        (["method.centring=false"], False, 0.07),
        (["method.sharpening=false"], True, 0.1),
    ],
)
def test_dinos_centring_and_sharpening_can_be_switched_off(options, centred, temperature):
    model = make("method=dino", "method.kwargs.num_prototypes=24", *options)
    loss_of(model, batch())
    loss = model.dino_loss_func
    assert bool(loss.center.abs().max() > 0) is centred
    assert set(loss.teacher_temp_schedule) == {temperature}


@pytest.mark.parametrize("method", ["symsimsiam", "vanilla"])
def test_symmetric_branches_are_one(method):
    model = make(f"method={method}")
    data = batch()
    online, target, positive, *_ = step(model, data)[1]
    want = torch.cat([model.projector(model.backbone(x)) for x in data[1]])
    torch.testing.assert_close(online, want.detach(), rtol=1e-4, atol=1e-5)
    assert online is target
    assert torch.equal(positive, online.roll(16, 0))


@pytest.mark.parametrize(
    "name",
    ["barlow_twins", "byol", "dino", "mocov2plus", "nnbyol", "nnclr", "ressl", "simsiam", "swav"],
)
def test_solo_learns_own_methods_are_recorded(name):
    model = foreign(name)
    assert type(model).__module__.startswith("solo.")
    if name == "swav":
        solo_learn.add_sinkhorn(model)
    if hasattr(model, "momentum_projector"):  # which starts as a copy of the other
        nn.init.normal_(model.momentum_projector[-1].weight)
    recorder, recorded = step(model, batch(8, channels=3, size=16))
    *outputs, hidden, features = recorded
    softmax = name in ("swav", "dino")
    if name in ("dino", "mocov2plus", "ressl"):  # a momentum network, and no predictor
        assert torch.equal(recorded.projection, recorded.online)
        assert not torch.equal(recorded.projection, recorded.target)
    if name == "ressl" and not solo_learn.CURRENT:  # 1.0.2 projects one view in each branch
        outputs.remove(None)
        assert {tuple(x.shape) for x in outputs} == {(8, 16)}
        return
    assert {tuple(x.shape) for x in outputs} == {(16, 24 if softmax else 16)}
    assert [len(x) for x in features] == [8, 8]
    assert all(x.isfinite().all() and not x.requires_grad for x in outputs)
    online, target, positive, _ = outputs
    if softmax:
        assert hidden.shape == recorder.weight().shape[1:] * 2 == (16, 16)
    else:
        assert hidden is None
        assert recorder.weight() is None
    assert recorder.m == (128 if name in ("byol", "nnbyol") else 512)
    assert torch.equal(positive, target.roll(8, 0))
    if METHODS[name].neighbours:  # rows of the queue, which is random at first
        before = foreign(name).queue
        assert all((before == row).all(1).any() for row in target)
    assert torch.equal(online, target) is (name == "barlow_twins")
    assert recorder.normalize is not softmax


def test_deepclusters_target_is_the_cluster_of_the_epoch():
    """Images that k-means has not seen are left out; in the first epoch it has seen none."""
    model = make("method=deepclusterv2", "method.kwargs.num_prototypes=[5,5]")
    model.assignments = torch.full((2, 20), -1)
    model.local_memory_index = torch.zeros(16, dtype=torch.long)
    model.local_memory_embeddings = torch.zeros(2, 16, model.proj_output_dim)
    data = batch()
    assert len(step(model, data)[1].target) == 0
    clusters = torch.arange(20) % 5
    clusters[[3, 7]] = -1
    model.assignments = torch.stack([clusters, clusters])
    _, (online, target, positive, projection, hidden, _) = step(model, data)
    seen = [i for i in range(16) if i not in (3, 7)]
    assert torch.equal(target.argmax(1), clusters[seen].repeat(2))
    assert torch.equal(positive, target)
    assert torch.equal(target.sum(1), torch.ones(28))
    with torch.no_grad():
        z = [normalize(model.projector(model.backbone(x)))[seen] for x in data[1]]
        want = (model.prototypes[0](torch.cat(z)) / model.temperature).softmax(1)
    torch.testing.assert_close(online, want, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(hidden, torch.cat(z), rtol=1e-4, atol=1e-6)
    assert projection is online
    assert "update_memory_banks" not in vars(model)


def test_swavs_queue_is_no_view():
    """Its rows go through the prototypes and Sinkhorn as well, behind those of the crops."""
    queue = ["method.kwargs.queue_size=32", "method.kwargs.epoch_queue_starts=0"]
    model = make("method=swav", "method.kwargs.num_prototypes=24", *queue)
    solo_learn.add_sinkhorn(model)
    width = model.proj_output_dim
    model.register_buffer("queue", normalize(torch.randn(2, 32, width), dim=2))
    data = batch()
    _, recorded = step(model, data)
    with torch.no_grad():
        hidden = [normalize(model.projector(model.backbone(x))) for x in data[1]]
    torch.testing.assert_close(recorded.hidden, torch.cat(hidden), rtol=1e-4, atol=1e-6)
    assert {len(x) for x in recorded[:-1]} == {32}


class Pairs(pl.LightningModule):
    """A module of someone else's: names and batches of its own, outputs returned by its step."""

    def __init__(self, *names: str, k: int = 6, **extra) -> None:
        super().__init__()
        self.net = nn.Linear(12, k)
        self.names, self.extra, self.seen = names, extra, []

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], batch_idx: int):
        a, b = (self.net(x) for x in batch)
        outputs = {"online": torch.cat([a, b]), "target": torch.cat([a, b]).detach() ** 2}
        outputs |= {"positive": torch.cat([b, a]), "projection": outputs["target"] + 1}
        outputs = {name: outputs[name] for name in self.names}
        self.seen.append({name: x.detach().clone() for name, x in outputs.items()})
        return {"loss": (a - b).square().mean(), **outputs, **self.extra}

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(model, folder, epochs: int = 1, place=None, **options) -> Diagnostics:
    """Return the diagnostics of four batches of pairs of noise."""
    x = torch.randn(4, 2, 10, 12, generator=torch.Generator().manual_seed(2))
    diagnostics = Diagnostics(folder, **options)
    table = [EpochTable(folder)] if epochs == 1 else []
    train(model, list(x.unbind()), epochs, [diagnostics, *table], place)
    return diagnostics


def train(model, batches: list, epochs: int, callbacks: list, place=None) -> None:
    """Train with a real Trainer, on the CPU unless another place is given."""
    trainer = pl.Trainer(max_epochs=epochs, callbacks=callbacks, **SILENT | (place or {}))
    trainer.fit(model, DataLoader(batches, batch_size=None))


class TestReturned:
    """A training step that gives the outputs itself, under a real Trainer."""

    @pytest.mark.parametrize("names", [(), ("positive",), ("positive", "projection")])
    @pytest.mark.parametrize("normalize", [True, False])
    def test_outputs_are_taken_as_they_are_returned(self, names, normalize, tmp_path):
        """They count before what could be recorded of a part of a known name."""
        model = Pairs("online", "target", *names, normalize=normalize)
        model.projector = nn.Identity()
        diagnostics = fit(model, tmp_path)
        want = BranchSpectra(6, normalize=normalize, steps=True)
        for outputs in model.seen:
            want.update(**outputs)
        want = want.compute()
        assert diagnostics.latest.scalars == want.scalars
        assert diagnostics.latest.rows == 80
        saved, _ = spectra_files.read(tmp_path)
        assert {*saved} == {"epoch", *want.arrays()}
        for name, array in want.arrays().items():
            np.testing.assert_array_equal(saved[name][0], array)
        untrained, row = all_rows(tmp_path)
        assert untrained["epoch"] == 0
        measured = row.keys() - {"epoch"}
        assert measured == want.scalars.keys()
        assert ("erank/positive" in measured) is bool(names)

    def test_epochs_and_steps_are_thinned_out(self, tmp_path):
        """Of 4 steps of 20 rows every second one is within 40; epochs 1, 3 and the last."""
        diagnostics = fit(
            Pairs("online", "target"), tmp_path, epochs=4, max_rows=40, every_n_epochs=2
        )
        saved, _ = spectra_files.read(tmp_path)
        assert saved["epoch"].tolist() == [1, 3, 4]
        assert saved["rows"].tolist() == [40, 40, 40]
        assert not list(tmp_path.rglob("*.part"))
        assert diagnostics.latest.rows == 40

    def test_a_fit_that_was_cut_short_leaves_nothing_behind(self, tmp_path):
        """Neither half an epoch's rows nor hooks nor epochs are in what a second fit measures."""
        model, diagnostics = Pairs("online", "target"), Diagnostics(tmp_path)

        class Interrupt(pl.Callback):
            def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
                if trainer.current_epoch == 1 and batch_idx == 1:
                    raise RuntimeError("power cut")

        batches = list(torch.randn(4, 2, 10, 12).unbind())
        with pytest.raises(RuntimeError, match="power cut"):
            train(model, batches, 2, [diagnostics, Interrupt()])
        train(model, batches, 1, [diagnostics])
        assert diagnostics.latest.rows == 80
        assert spectra_files.read(tmp_path)[0]["epoch"].tolist() == [1]

    def test_large_outputs_are_sampled_and_the_log_says_so_once(self, tmp_path, caplog):
        model = Pairs("online", "target", "positive", k=40)
        diagnostics = fit(model, tmp_path, epochs=2, max_dim=8, sample=16)
        (said,) = [r.message for r in caplog.records if "sampled" in r.message]
        assert "spectra at k=40 are computed from N=16 sampled rows" in said
        assert diagnostics.latest.sampled
        saved, _ = spectra_files.read(tmp_path)
        assert saved["sampled"].all()
        assert saved["rows"].tolist() == [16, 16]
        assert saved["lam_online"].shape == (2, 16)

    def test_a_step_that_returns_neither_is_refused_with_what_to_do(self, tmp_path):
        with pytest.raises(UserError, match="Pairs"):
            fit(Pairs("online"), tmp_path)
        fit(Pairs("online"), tmp_path, every_n_epochs=0)
        assert not (tmp_path / "spectra").exists()


def scalars_there(folder, float64: bool) -> dict[str, float]:
    """Return what is measured on the second device, which may lack float64."""
    torch.manual_seed(0)
    folder.mkdir()
    strategy = pl.strategies.SingleDeviceStrategy(DEVICE)
    place = {"accelerator": Accelerator(), "strategy": strategy}
    with contextlib.nullcontext() if float64 else without_float64():
        return fit(Pairs("online", "target"), folder, epochs=2, place=place).latest.scalars


@pytest.mark.parametrize("float64", [True, False])
def test_spectra_of_a_device_are_those_of_the_cpu(float64, on_second_device, tmp_path):
    scalars = on_second_device(scalars_there, tmp_path / "there", float64)
    torch.manual_seed(0)
    want = fit(Pairs("online", "target"), tmp_path, epochs=2).latest.scalars
    assert {"erank/online", "erank/target"} <= want.keys()
    assert scalars == pytest.approx(want, rel=1e-9, abs=1e-9, nan_ok=True)


class Moves(pl.Callback):
    """Moves a layer when an epoch ends, as its last step does, and keeps what entered it."""

    def __init__(self, layer: nn.Module) -> None:
        self.layer, self.entered = layer, []
        layer.register_forward_pre_hook(lambda layer, args: self.entered.append(args[0].detach()))

    def on_train_epoch_start(self, trainer, pl_module):
        self.entered.clear()  # from before the first step

    def on_train_epoch_end(self, trainer, pl_module):
        with torch.no_grad():
            self.layer.weight_v.add_(torch.randn(self.layer.weight_v.shape))


@pytest.mark.parametrize(
    "sizes",
    [
        ["method=swav", "method.kwargs.proj_output_dim=1"],
        ["method=swav", "method.kwargs.num_prototypes=1"],
        ["method=dino", "method.kwargs.proj_output_dim=1"],
    ],
)
def test_one_column_is_measured(sizes, tmp_path):
    diagnostics = Diagnostics(tmp_path)
    train(make(*sizes), [batch(), batch()], 1, [diagnostics])
    assert diagnostics.latest.scalars["erank/logits"] == pytest.approx(1)


@pytest.mark.parametrize("method", ["swav", "dino"])
def test_the_spectrum_of_the_logits_is_that_of_the_epochs_last_weight(method, tmp_path):
    """The hidden rows of two steps and the weight that is there when the epoch ends."""
    model = make(f"method={method}", "method.kwargs.num_prototypes=24")
    layer = model.prototypes if method == "swav" else model.head.last_layer
    moves, diagnostics = Moves(layer), Diagnostics(tmp_path)
    train(model, [batch(), batch()], 1, [moves, diagnostics])
    spectra = diagnostics.latest
    v = layer.weight_v.detach().double()
    W = v / v.norm(dim=1, keepdim=True)
    hidden = torch.cat(moves.entered[:4]).double()  # of two views in two steps
    assert spectra.rows == len(hidden) == 64
    logits = hidden @ W.T
    want = torch.linalg.svdvals(logits).square() / len(logits)
    b = W.shape[1]
    # The layer's own float32 weight: measured 2e-7, with a margin of ten.
    torch.testing.assert_close(spectra.lam_logits, want[:b], rtol=2e-6, atol=2e-6 * float(want[0]))
    assert spectra.scalars["erank/logits"] == pytest.approx(float(effective_rank(want)), rel=1e-5)
    assert torch.equal(spectra.arrays()["lam_logits"], spectra.lam_logits)
    # What collapse is judged by: the logits' variance, and the directions of what they are made of.
    around = torch.cat([step - step.mean(0) for step in hidden.split(32)])
    share = float((around @ W.T).square().sum() / logits.square().sum())
    assert spectra.scalars["feature/spread"] == pytest.approx(share, rel=1e-5)
    directions = float(effective_rank(torch.linalg.svdvals(around).square()))
    assert spectra.scalars["erank/centred"] == pytest.approx(directions, rel=1e-9)
    assert spectra.dimensions == hidden.shape[1]
