"""Spectra of modules that Lightning trains."""

import math

import numpy as np
import pytest
import torch
from support.device_runs import Accelerator
from support.second_device import DEVICE, without_float64
from support.small_methods import batch, make
from support.small_runs import SILENT, all_rows
from torch import nn
from torch.utils.data import DataLoader

from rdm_solo.callbacks import Diagnostics, EpochTable
from rdm_solo.ground.errors import UserError
from rdm_solo.ground.lightning import pl
from rdm_solo.runs import spectra_files
from rdm_solo.spectra import BranchSpectra, effective_rank


class Pairs(pl.LightningModule):
    """A user's module whose training step returns the named outputs of a batch of pairs."""

    def __init__(self, *names: str, k=6, **extra) -> None:
        super().__init__()
        self.net = nn.Linear(12, k)
        self.names = names
        self.extra = extra
        self.returned = []

    def training_step(self, batch: torch.Tensor, batch_idx: int):
        a, b = self.net(batch)
        online = torch.cat([a, b])
        target = online.detach() ** 2
        all_outputs = {
            "online": online,
            "target": target,
            "positive": torch.cat([b, a]),
            "projection": target + 1,
        }
        outputs = {name: all_outputs[name] for name in self.names}
        self.returned.append({name: outputs[name].detach().clone() for name in outputs})
        loss = (a - b).square().mean()
        return {"loss": loss, **outputs, **self.extra}

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def pairs_of_noise() -> list[torch.Tensor]:
    """Return four batches of ten pairs."""
    rng = torch.Generator().manual_seed(2)
    pairs = torch.randn(4, 2, 10, 12, generator=rng)
    return list(pairs)


def train(model, *callbacks, batches=None, **options) -> pl.Trainer:
    """Train on pairs of noise, or on these batches."""
    options = SILENT | {"max_epochs": 1} | options
    trainer = pl.Trainer(callbacks=list(callbacks), **options)
    loader = DataLoader(batches or pairs_of_noise(), batch_size=None)
    trainer.fit(model, loader)
    return trainer


@pytest.mark.parametrize(
    ("names", "normalize"),
    [((), True), (("positive",), False), (("positive", "projection"), True)],
)
def test_returned_outputs_are_measured_and_written(names, normalize, tmp_path):
    """They count before the outputs of a part of a known name."""
    model = Pairs("online", "target", *names, normalize=normalize)
    model.projector = nn.Identity()
    diagnostics = Diagnostics(tmp_path)
    train(model, diagnostics, EpochTable(tmp_path))
    metric = BranchSpectra(6, normalize=normalize, steps=True)
    for outputs in model.returned:
        metric.update(**outputs)
    expected = metric.compute()
    # The same operations on the same shapes: the same bits. Measured as in test_device_runs.py.
    assert diagnostics.latest.scalars == expected.scalars
    assert ("erank/positive" in expected.scalars) is bool(names)
    assert diagnostics.latest.rows == 80
    arrays, _ = spectra_files.read(tmp_path)
    assert arrays.keys() == {"epoch", *expected.arrays()}
    for name, array in expected.arrays().items():
        np.testing.assert_array_equal(arrays[name][0], array)
    untrained, row = all_rows(tmp_path)
    assert untrained["epoch"] == 0
    assert row.pop("epoch") == 1
    assert row == pytest.approx(expected.scalars, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize(
    "end",
    [
        {"max_epochs": 4},
        {"max_epochs": -1, "max_steps": 15},
        {"max_epochs": -1, "max_steps": 8, "accumulate_grad_batches": 2},
    ],
)
def test_epochs_and_steps_are_thinned_out(end, tmp_path):
    """Of 4 steps of 20 rows every second one is within 40; epochs 1, 3 and the last."""
    diagnostics = Diagnostics(tmp_path, every_n_epochs=2, max_rows=40)
    train(Pairs("online", "target"), diagnostics, **end)
    arrays, _ = spectra_files.read(tmp_path)
    assert arrays["epoch"].tolist() == [1, 3, 4]
    assert arrays["rows"].tolist() == [40, 40, 40]
    assert diagnostics.latest.rows == 40


def test_a_fit_that_failed_leaves_nothing_behind(tmp_path):
    """A second fit measures no rows, hooks or epochs of the first."""
    model = Pairs("online", "target")
    diagnostics = Diagnostics(tmp_path)

    class Interrupt(pl.Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            if trainer.current_epoch == 1 and batch_idx == 1:
                raise RuntimeError("power cut")

    with pytest.raises(RuntimeError, match="power cut"):
        train(model, diagnostics, Interrupt(), max_epochs=2)
    train(model, diagnostics)
    assert diagnostics.latest.rows == 80
    arrays, _ = spectra_files.read(tmp_path)
    assert arrays["epoch"].tolist() == [1]


def test_large_outputs_are_sampled_and_the_log_says_so_once(tmp_path, caplog):
    model = Pairs("online", "target", "positive", k=40)
    diagnostics = Diagnostics(tmp_path, max_dim=8, sample=16)
    train(model, diagnostics, max_epochs=2)
    assert caplog.text.count("N=16") == 1
    assert diagnostics.latest.sampled
    arrays, _ = spectra_files.read(tmp_path)
    assert arrays["sampled"].all()
    assert arrays["rows"].tolist() == [16, 16]
    assert arrays["lam_online"].shape == (2, 16)


def test_a_step_that_returns_neither_branch_is_refused(tmp_path):
    with pytest.raises(UserError, match="training_step"):
        train(Pairs("online"), Diagnostics(tmp_path))
    train(Pairs("online"), Diagnostics(tmp_path, every_n_epochs=0))
    assert not (tmp_path / "spectra").exists()


def second_epoch(folder, **options) -> dict[str, float]:
    torch.manual_seed(0)
    diagnostics = Diagnostics(folder)
    train(Pairs("online", "target"), diagnostics, max_epochs=2, **options)
    return diagnostics.latest.scalars


@without_float64()
def second_epoch_on_device(folder) -> dict[str, float]:
    folder.mkdir()
    strategy = pl.strategies.SingleDeviceStrategy(DEVICE)
    return second_epoch(folder, accelerator=Accelerator(), strategy=strategy)


def test_spectra_on_a_device_without_float64_are_those_on_the_cpu(on_second_device, tmp_path):
    """The runs in tests/train/test_device_runs.py have a device with float64."""
    scalars = on_second_device(second_epoch_on_device, tmp_path / "device")
    expected = second_epoch(tmp_path)
    assert {"erank/online", "erank/target"} <= expected.keys()
    assert scalars == pytest.approx(expected, rel=1e-9, abs=1e-9, nan_ok=True)


@pytest.mark.parametrize("option", ["proj_output_dim", "num_prototypes"])
def test_one_column_is_measured(option, tmp_path):
    model = make("method=swav", f"method.kwargs.{option}=1")
    diagnostics = Diagnostics(tmp_path)
    train(model, diagnostics, batches=[batch(), batch()])
    assert diagnostics.latest.scalars["erank/logits"] == pytest.approx(1)


class ChangeLayer(pl.Callback):
    """Change a layer's weight at the end of an epoch, and keep the layer's inputs."""

    def __init__(self, layer: nn.Module) -> None:
        self.layer = layer
        self.inputs: list[torch.Tensor] = []
        layer.register_forward_pre_hook(self.keep)

    def keep(self, layer, args):
        self.inputs.append(args[0].detach())

    def on_train_epoch_start(self, trainer, pl_module):
        self.inputs.clear()  # from before the first step

    def on_train_epoch_end(self, trainer, pl_module):
        with torch.no_grad():
            weight = self.layer.weight_v
            weight.add_(torch.randn(weight.shape))


@pytest.mark.parametrize("method", ["swav", "dino"])
def test_the_spectrum_of_the_logits_uses_the_weight_at_the_epochs_end(method, tmp_path):
    model = make(f"method={method}", "method.kwargs.num_prototypes=24")
    layers = {"swav": "prototypes", "dino": "head.last_layer"}
    layer = model.get_submodule(layers[method])
    change = ChangeLayer(layer)
    diagnostics = Diagnostics(tmp_path)
    batches = [batch(), batch()]
    trainer = train(model, change, diagnostics, batches=batches)
    spectra = diagnostics.latest
    v = layer.weight_v.detach().double()
    W = v / v.norm(dim=1, keepdim=True)
    hidden = torch.cat(change.inputs[:4]).double()  # of two views in two steps
    n, b = hidden.shape
    assert n == 64
    assert (spectra.rows, spectra.dimensions) == (n, b)
    logits = hidden @ W.T
    lam = torch.linalg.svdvals(logits).square() / n
    # The layer's own float32 weight: measured 2e-7, with a margin of ten.
    atol = 2e-6 * float(lam[0])
    torch.testing.assert_close(spectra.lam_logits, lam[:b], rtol=2e-6, atol=atol)
    erank = float(effective_rank(lam))
    assert spectra.scalars["erank/logits"] == pytest.approx(erank, rel=1e-5)
    # Collapse is judged by the logits' variance and by the directions of the layer's inputs.
    steps = hidden.split(32)
    centred = torch.cat([step - step.mean(0) for step in steps])
    centred_logits = centred @ W.T
    spread = float(centred_logits.square().sum() / logits.square().sum())
    assert spectra.scalars["feature/spread"] == pytest.approx(spread, rel=1e-5)
    centred_lam = torch.linalg.svdvals(centred).square()
    centred_rank = float(effective_rank(centred_lam))
    assert spectra.scalars["erank/centred"] == pytest.approx(centred_rank, rel=1e-9)
    loss = float(trainer.callback_metrics["train/loss"])
    loss_share = diagnostics.scalars["train/loss_share"]
    assert loss_share == pytest.approx(loss / math.log(24), rel=1e-6)
