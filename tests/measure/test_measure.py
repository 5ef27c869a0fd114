"""The command: every kind of encoder from real files, its numbers, its page and its refusals."""

import json
import sys

import numpy as np
import pytest
import torch
import torchvision
from sklearn.neighbors import KNeighborsClassifier
from torch import nn

from rdm_solo import data
from rdm_solo.cli import arguments, terminal
from rdm_solo.ground.lightning import pl
from rdm_solo.measure import encoders, scores
from rdm_solo.measure.side_by_side import measure as measure_config

DATA = ["dataset=synthetic", "dataset.num_train=80", "dataset.num_val=40", "dataset.image_size=8"]
OWN = """
import torch
from torch import nn


def flatten():
    return nn.Sequential(nn.Flatten(), nn.Identity())


def norm():
    return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(192, eps=1e-12))


def linear():
    torch.manual_seed(5)
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 6))


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x):
        return self.scale * x.flatten(1)


def broken():
    return nn.Sequential(Scaled(), nn.BatchNorm1d(5))


def no_module():
    return 3


def nan():
    class Nan(nn.Module):
        def forward(self, x):
            y = x.flatten(1).clone()
            y[:2] = torch.nan
            return y

    return Nan()


def all_nan():
    class AllNan(nn.Module):
        def forward(self, x):
            return x.flatten(1) * torch.nan

    return AllNan()


def constant():
    class Constant(nn.Module):
        def forward(self, x):
            return torch.ones(len(x), 4)

    return Constant()
"""


@pytest.fixture(autouse=True, scope="module")
def own(tmp_path_factory):
    folder = tmp_path_factory.mktemp("own")
    (folder / "own_encoders.py").write_text(OWN)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield
    sys.modules.pop("own_encoders", None)


@pytest.fixture(scope="module")
def measure(tmp_path_factory):
    """Call the command with encoders and options; return the scores by name."""

    def call(*argv: str, out=None):
        out = out or tmp_path_factory.mktemp("measured") / "out"
        options = ["device=cpu", f"out={out}"]
        if not any(argument.startswith("dataset=") for argument in argv):
            options += DATA
        passed = {}
        for argument in [*options, *argv]:  # later ones replace earlier ones
            passed[argument.partition("=")[0] if "dataset" in argument else argument] = argument
        rows = measure_config(arguments.compose("measure", list(passed.values())))
        return {row.name: row for row in rows}

    return call


@pytest.fixture(scope="module")
def flattened(measure):
    """The rows of an encoder whose features are the pixels."""
    return measure("own_encoders.flatten")


def clean(part: str) -> tuple[np.ndarray, np.ndarray]:
    """Return all normalised pixels of the synthetic images, as float64 rows, and their labels."""
    dataset = data.synthetic(num_train=80, num_val=40, size=8)
    images = getattr(dataset, part)
    mean, std = torch.tensor([dataset.mean, dataset.std]).view(2, 3, 1, 1).double()
    pixels = (images.images.double() / 255 - mean) / std
    return pixels.flatten(1).numpy(), images.labels.numpy()


class TestNumbers:
    def test_known_features_have_the_ranks_and_accuracies_of_an_oracle(self, flattened):
        row = flattened["own_encoders.flatten"]
        values = row.values
        pixels = flattened["raw pixels, 8 px"]
        assert (pixels.values, pixels.spectrum) == (values, row.spectrum)
        train, labels = clean("train")
        val, val_labels = clean("val")
        x = np.concatenate([train, val])

        def rank(matrix):
            sigma = np.linalg.svd(matrix, compute_uv=False)
            q = sigma**2 / (sigma**2).sum()
            q = q[q > 0]
            return np.exp(-(q * np.log(q)).sum())

        assert values["erank/features"] == pytest.approx(rank(x), rel=1e-4)
        centred = x - x.mean(0)
        assert values["erank/features_centred"] == pytest.approx(rank(centred), rel=1e-4)
        expected = np.linalg.eigvalsh(np.cov(x.T, bias=True))[::-1]
        np.testing.assert_allclose(row.spectrum, expected, atol=1e-5 * expected[0])

        def weights(distances):  # of unit vectors, d^2 = 2 - 2 cos
            return np.exp((1 - distances**2 / 2) / 0.07)

        knn = KNeighborsClassifier(20, weights=weights)
        knn.fit(train / np.linalg.norm(train, axis=1, keepdims=True), labels)
        accuracy = knn.score(val / np.linalg.norm(val, axis=1, keepdims=True), val_labels)
        assert values["val/knn_acc1"] == pytest.approx(100 * accuracy)
        assert values["linear/top1"] > 90

    def test_networks_are_measured_in_evaluation_mode(self, measure, flattened):
        expected = flattened["own_encoders.flatten"].values
        rows = measure("own_encoders.norm", "images=5000")
        for name in ("own_encoders.norm", "own_encoders.norm, untrained"):
            assert rows[name].values == pytest.approx(expected, rel=1e-4)

    def test_a_random_vision_transformer_has_a_rank_of_patches(self, measure):
        rows = measure("timm/test_vit", "dataset.image_size=32")
        row = rows["timm/test_vit"]
        assert 1 < row.values["erank/patches"] < 64
        assert len(row.patch_spectrum) == row.dimensions
        remarks = " ".join(row.remarks)
        assert "random" in remarks
        assert "Patches" not in remarks, "their number is known"
        assert not rows["raw pixels, 16 px"].patch_spectrum


def randomise(module: nn.Module) -> None:
    """Draw the values of the norm layers, running statistics included."""
    generator = torch.Generator().manual_seed(0)
    for value in module.state_dict().values():
        if value.ndim == 1:
            value.uniform_(0.5, 1.0, generator=generator)


class SimSiam(pl.LightningModule):
    """A module as in lightly's examples, with its backbone."""

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone
        self.projection_head = nn.Linear(512, 8)


def save_checkpoint(model: pl.LightningModule, path) -> None:
    trainer = pl.Trainer(logger=False, accelerator="cpu", barebones=True)
    trainer.strategy.connect(model)
    trainer.save_checkpoint(path, weights_only=True)


def torchvisions() -> nn.Sequential:
    """A backbone as in lightly's tutorials."""
    resnet = torchvision.models.resnet18()
    return nn.Sequential(*list(resnet.children())[:-1])


def lightlys() -> nn.Sequential:
    """The layers of lightly's ResNetGenerator, whose ReLU and pooling have no layer (1.6)."""
    resnet = torchvision.models.resnet18()
    conv1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False)
    layers = [resnet.layer1, resnet.layer2, resnet.layer3, resnet.layer4]
    return nn.Sequential(conv1, resnet.bn1, *layers, nn.AdaptiveAvgPool2d(1))


class TestEncoders:
    def features(self, name: str, x: torch.Tensor) -> torch.Tensor:
        encoder = encoders.load(str(name), 32, False, 0)
        fresh = encoder.untrained.eval()(x)
        torch.testing.assert_close(fresh.shape, encoder.module(x).shape)
        again = encoders.load(str(name), 32, False, 0).untrained.eval()(x)
        assert torch.equal(fresh, again)
        return encoder.module(x)

    @pytest.mark.parametrize(
        ("network", "prefix", "shortcut"),
        [
            (torchvisions, "backbone.", "downsample"),
            (lightlys, "teacher_backbone.", "shortcut"),  # of DINO
        ],
    )
    def test_lightlys_checkpoint_with_numbered_layers(self, network, prefix, shortcut, tmp_path):
        backbone = network().eval()
        randomise(backbone)
        with torch.no_grad():
            backbone[1].bias.sub_(1.5)  # so that a ReLU would change the outputs
        model = SimSiam(backbone)
        save_checkpoint(model, tmp_path / "a.ckpt")
        content = torch.load(tmp_path / "a.ckpt", weights_only=True)
        state = content["state_dict"]
        for name in list(state):  # lightly's own ResNet has another name
            renamed = name.replace("backbone.", prefix).replace("downsample", shortcut)
            state[renamed] = state.pop(name)
        state["student_backbone.0.weight"] = torch.zeros(3)
        torch.save(content, tmp_path / "a.ckpt")
        x = torch.randn(2, 3, 32, 32)
        with torch.no_grad():
            expected = backbone(x).flatten(1)
            torch.testing.assert_close(self.features(tmp_path / "a.ckpt", x), expected)

    def test_numbered_layers_do_not_tell_the_padding_of_a_small_stem(self, tmp_path):
        backbone = torchvisions()
        backbone[0] = nn.Conv2d(3, 64, 3, 1, 0, bias=False)
        torch.save(backbone.state_dict(), tmp_path / "a.pth")
        encoder = encoders.load(str(tmp_path / "a.pth"), 32, False, 0)
        assert "stem" in encoder.note

    def test_runs_and_their_checkpoints_are_measured_side_by_side(self, finished, measure):
        checkpoint = finished / "checkpoints" / "last.ckpt"
        rows = measure(str(finished / "."), str(checkpoint), "dataset.image_size=8")
        assert len(rows) == 5
        of_run, _, of_file, *_ = rows.values()
        assert of_run.values == of_file.values
        assert encoders.load(str(finished), 32, False, 0).trained_size == 8

    def test_a_function_of_the_users(self):
        encoder = encoders.load("own_encoders.linear", 8, False, 3)
        trained, fresh = encoder.module[1], encoder.untrained[1]
        with torch.random.fork_rng():
            torch.manual_seed(5)
            expected = nn.Linear(192, 6)
        assert torch.equal(trained.weight, expected.weight)
        assert not torch.equal(fresh.weight, trained.weight)
        assert fresh.weight.abs().max().item() <= 192**-0.5

    def test_parameters_that_nothing_resets_leave_no_untrained_network(self):
        encoder = encoders.load("own_encoders.Scaled", 8, False, 0)
        assert encoder.untrained is None
        assert "reset_parameters" in encoder.note


class TestRemarks:
    def test_few_images(self, flattened):
        assert "120 images" in " ".join(flattened["own_encoders.flatten"].remarks)

    def test_features_that_are_not_finite_or_equal(self, measure):
        names = [f"own_encoders.{name}" for name in ("nan", "all_nan", "constant")]
        rows = measure(*names)
        some, none, equal = (rows[name] for name in names)
        assert "4 of 120 images" in " ".join(some.remarks)
        assert "val/knn_acc1" not in some.values
        assert np.isfinite(some.spectrum).all()
        assert "120 of 120 images" in " ".join(none.remarks)
        assert not none.spectrum
        assert not none.values
        assert "equal" in " ".join(equal.remarks)
        assert equal.values["erank/features_centred"] == 0

    @pytest.mark.parametrize(("accuracy", "is_below"), [(75.0, True), (87.5, False)])
    def test_knn_is_below_a_baseline_beyond_the_standard_error(self, accuracy, is_below):
        images = data.synthetic(num_train=80, num_val=40, size=8)
        views = data.Views([data.Pipeline(8, 2)])
        chosen = scores.choose(images, views, 120, 0, torch.device("cpu"), None)
        queries = len(chosen.val.dataset)
        error = 100 * np.sqrt((0.9 * 0.1 + accuracy / 100 * (1 - accuracy / 100)) / queries)
        assert (accuracy < 90 - error) == is_below
        own, baseline = (
            scores.Scores(name, 120, 2, {scores.KNN: value}, [], [])
            for name, value in (("own", accuracy), ("baseline", 90.0))
        )
        scores.add_remarks(own, [baseline], chosen)
        assert ("baseline" in " ".join(own.remarks)) == is_below

    def test_the_size_of_the_training_images(self):
        encoder = encoders.Encoder("a", nn.Identity(), None, trained_size=32)
        assert not encoder.remarks(40)
        for size in (8, 224):
            assert "32 px" in encoder.remarks(size)[0]


class TestImages:
    def test_a_seed_determines_which_images_are_measured(self):
        images = data.synthetic(num_train=50, num_val=5, size=8).train
        some, again, others = (scores.subset(images, 20, seed).images for seed in (1, 1, 2))
        assert len(some) == 20
        assert torch.equal(some, again)
        assert not torch.equal(some, others)
        assert len(scores.subset(images, 99, seed=1)) == 50

    def test_files_without_labels(self, tree, measure):
        folder = tree / "train" / sorted(path.name for path in (tree / "train").iterdir())[0]
        rows = measure(
            "own_encoders.constant",
            "dataset=folder",
            f"dataset.root={folder}",
            "dataset.train=.",
            "dataset.labels=false",
            "dataset.image_size=8",
            "dataset.workers=0",
        )
        (row, *_) = rows.values()
        assert "val/knn_acc1" not in row.values
        assert row.images == len(list(folder.iterdir()))

    def test_a_large_network_sees_fewer_images_on_a_cpu(self):
        cpu = torch.device("cpu")
        small = encoders.load("own_encoders.linear", 8, False, 0)
        assert encoders.affordable(small, 3, 8, cpu) == encoders.MOST
        large = encoders.Encoder("large", nn.Conv2d(3, 2000, 3, padding=1), None)
        count = encoders.affordable(large, 3, 64, cpu)
        operations = 2 * 64 * 64 * 2000 * 3 * 9
        assert count == int(encoders.CPU_OPERATIONS / operations)


def test_the_page_has_every_number_and_the_files_agree(measure, tmp_path, caplog):
    caplog.set_level("INFO", logger="rdm_solo")
    out = tmp_path / "out"
    rows = measure("own_encoders.linear", out=out)
    remarks = " ".join(rows["own_encoders.linear"].remarks)
    assert "raw pixels" in remarks
    assert "dimensions" not in remarks
    html = (out / "measure.html").read_text()
    records = json.loads((out / "measure.json").read_text())
    assert [record["name"] for record in records] == list(rows)
    for record in records:
        assert record["values"] == rows[record["name"]].values
        for text in (f"{record['values']['rankme/features']:.3g}", record["name"]):
            assert text in html
            assert text in caplog.text
        for remark in record["remarks"]:
            assert remark in html
            assert remark in caplog.text
    assert (out / "spectra.png").stat().st_size > 5000


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("missing.ckpt", "MODULE.FUNCTION"),
        ("own_encoders.missing", "MODULE.FUNCTION"),
        ("own_encoders.no_module", "must return a module"),
        ("own_encoders.broken", "cannot take images of 8 px"),
        ("timm/no_such_model", "timm has no such model"),
        ("timm/test_vit", "timm/test_vit"),
        ("unknown.pth", "MODULE.FUNCTION"),
    ],
)
def test_what_is_no_encoder_is_refused_in_a_sentence(
    name, words, measure, tmp_path, capsys, monkeypatch
):
    torch.save({"weird.weight": torch.ones(2)}, tmp_path / "unknown.pth")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit), terminal.errors_without_traceback():
        measure(name, "images=20", out=tmp_path / "out")
    message = capsys.readouterr().err
    assert words in message
    assert message.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_encoders_stand_anywhere_in_the_command(tmp_path, typed):
    (tmp_path / "p=1.pth").touch()
    shown = typed(
        "rdm_solo.measure", "p=1.pth", "dataset=digits", "a.b", "--cfg", "job", cwd=tmp_path
    )
    assert "- p=1.pth" in shown.stdout
    assert "- a.b" in shown.stdout
    assert "- job" not in shown.stdout
