"""Measurements on a user's images: right on one process and on two, and without a trace."""

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from support import second_device
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler, RandomSampler, TensorDataset

from rdm_solo.ground.errors import UserError
from rdm_solo.observe.recorder import Limits
from rdm_solo.runs.columns import COLUMNS
from rdm_solo.spectra.features import FeatureSpectra
from rdm_solo.spectra.patches import gram_drift, patch_grams, patch_rank
from rdm_solo.watch.fixed_images import FixedImages, HeldOut, LabelledImages, Patches

CLASSES = 3


def labelled(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return images ``(n, 1, 4, 4)`` of overlapping classes, and their labels."""
    draw = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (n,), generator=draw)
    means = torch.randn(CLASSES, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    return 0.7 * means[labels] + torch.randn(n, 1, 4, 4, generator=draw), labels


TRAIN, VAL = labelled(61, 1), labelled(37, 2)


class Net(nn.Module):
    """A network with what a careless measurement would change: batch norm, dropout, modes."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.backbone = nn.Sequential(
            nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Dropout(0.5)
        )
        self.frozen = nn.Dropout(0.5).eval()
        self.head = nn.Linear(32, CLASSES)

    def forward(self, x):
        return self.head(self.frozen(self.backbone(x)))


class Augmented(Dataset):
    """Images that draw from all three random number generators."""

    def __len__(self):
        return len(VAL[0])

    def __getitem__(self, index):
        noise = torch.randn(1, 4, 4) * np.random.rand() * random.random()
        return VAL[0][index] + 0.01 * noise, VAL[1][index]


def knn_accuracy(features: torch.nn.Module, k: int = 20, temperature: float = 0.07) -> float:
    """Return weighted kNN's accuracy in float64, query by query."""
    with torch.no_grad():
        memory, queries = (nn.functional.normalize(features(x).double()) for x, _ in (TRAIN, VAL))
    correct = 0
    for query, label in zip(queries, VAL[1]):
        similarity = memory @ query
        nearest = similarity.argsort(descending=True)[:k]
        votes = torch.zeros(CLASSES, dtype=torch.float64)
        for index in nearest:
            votes[TRAIN[1][index]] += (similarity[index] / temperature).exp()
        correct += int(votes.argmax() == label)
    return 100 * correct / len(queries)


def knn_of(images: LabelledImages, net: "Net") -> float:
    return images.scalars(net.backbone, net)["val/knn_acc1"]


def test_accuracy_is_that_of_the_definition_from_tensors_and_from_loaders():
    net = Net()
    expected = knn_accuracy(Net().eval().backbone)
    assert 100 / CLASSES < expected < 100
    measured = LabelledImages(TRAIN, VAL).scalars(net.backbone, net)
    labels = VAL[1].tolist()
    chance = 100 * max(map(labels.count, labels)) / len(labels)
    assert measured == pytest.approx({"val/knn_acc1": expected, "val/chance": chance})
    loaders = [DataLoader(TensorDataset(*data), 7, shuffle=True) for data in (TRAIN, VAL)]
    measured = LabelledImages(list(TRAIN), list(VAL))
    assert knn_of(measured, net) == pytest.approx(expected)
    measured = LabelledImages(*loaders, k=5)
    assert knn_of(measured, net) == pytest.approx(knn_accuracy(net.eval().backbone, 5))


# The generator of several loaders, as in PyTorch's page on reproducibility.
SHARED = torch.Generator()


def trained(measure) -> tuple[dict, list]:
    """Train two epochs, call ``measure(net)`` after each, and return weights and random draws."""
    net = Net()
    random.seed(0)
    np.random.seed(0)
    loader = DataLoader(TensorDataset(*TRAIN), 16, shuffle=True, generator=SHARED.manual_seed(1))
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    for _ in range(2):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x), y).backward()
            optimizer.step()
        measure(net)
    draws = [
        torch.rand(()).item(),
        torch.rand((), generator=SHARED).item(),
        np.random.rand(),
        random.random(),
    ]
    gradients = {f"grad of {name}": p.grad for name, p in net.named_parameters()}
    return {**net.state_dict(), **gradients}, draws


def test_measurements_leave_no_trace_in_training(tmp_path):
    train = DataLoader(TensorDataset(*TRAIN), 5, sampler=RandomSampler(TRAIN[0], generator=SHARED))
    val = DataLoader(Augmented(), 5, shuffle=True, generator=SHARED)
    images = FixedImages((train, val), val, tmp_path)
    limits = Limits(max_rows=20)
    accuracies = []

    def measure(net: Net) -> None:
        modes = [module.training for module in net.modules()]
        scalars = images.scalars(net.backbone, net, limits, epoch=1)
        assert [module.training for module in net.modules()] == modes
        accuracies.append(scalars["val/knn_acc1"])
        assert "erank/held_out" in scalars
        assert "erank/patches" not in scalars, "the backbone has none"

    weights, draws = trained(measure)
    expected_weights, expected_draws = trained(lambda net: None)
    assert draws == expected_draws
    for name, value in expected_weights.items():
        assert torch.equal(weights[name], value), name
    assert len(set(accuracies)) == 2, "training changes it"
    assert list(tmp_path.iterdir()) == []


def test_a_backbone_that_is_missing_or_cannot_take_the_images_is_an_error_and_modes_are_restored():
    net = Net()
    with pytest.raises(UserError, match="backbone="):
        LabelledImages(TRAIN, VAL).scalars(None, net)
    net.backbone[0] = nn.Linear(5, 5)
    with pytest.raises(UserError, match="cannot take a batch"):
        LabelledImages(TRAIN, VAL).scalars(net.backbone, net)
    assert net.training
    assert not net.frozen.training


class Counted(nn.Module):
    """Count how often each image comes; the first pixel is its number."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(1, 1)
        self.counts = torch.zeros(len(TRAIN[0]) + len(VAL[0]))

    def forward(self, x):
        self.counts[x[:, 0, 0, 0].long()] += 1
        return x.flatten(1)[:, 1:]


def measure_on_each_process(rank: int, size: int, kind: str) -> None:
    torch.manual_seed(rank)  # each process shuffles differently
    sources = []
    start = 0
    for images, labels in (TRAIN, VAL):
        images = images.clone()
        images[:, 0, 0, 0] = torch.arange(start, start + len(images))
        start += len(images)
        dataset = TensorDataset(images, labels)
        source = (images, labels)
        if kind == "loader":
            source = DataLoader(dataset, 1, shuffle=True)
        if kind == "sampler":
            source = DataLoader(dataset, 9, sampler=DistributedSampler(dataset, size, rank))
        sources.append(source)
    counted = Counted()
    accuracy = LabelledImages(*sources).scalars(counted, counted)["val/knn_acc1"]
    torch.distributed.all_reduce(counted.counts)
    expected = knn_accuracy(lambda x: x.flatten(1)[:, 1:])
    if kind == "sampler":  # it repeats an image, so that both processes have the same number
        assert sorted(counted.counts.tolist()) == [1] * (start - 2) + [2, 2]
        assert abs(accuracy - expected) < 100 / len(VAL[0])
    else:
        assert counted.counts.tolist() == [1] * start
        assert accuracy == pytest.approx(expected)


@pytest.mark.parametrize("kind", ["tensors", "loader", "sampler"])
def test_two_processes_take_each_image_once_and_find_what_one_finds(worlds, kind):
    worlds(2).run(measure_on_each_process, kind)


def measure_with_ddp(rank: int, size: int) -> None:
    net = Net()
    ddp = nn.parallel.DistributedDataParallel(net.backbone)
    batch_norm = net.backbone[1]
    batch_norm.running_mean.fill_(rank)  # DDP would copy rank 0's
    net.backbone = ddp
    LabelledImages(TRAIN, VAL).scalars(net.backbone, net)
    assert batch_norm.running_mean.tolist() == [rank] * 8


def test_buffers_of_a_distributed_backbone_are_not_synchronised(worlds):
    worlds(2).run(measure_with_ddp)


IMAGES, LABELS = TRAIN


@pytest.mark.parametrize(
    ("train", "received"),
    [
        (DataLoader(IMAGES, 4), "labelled"),
        ((IMAGES, LABELS.float()), "float32"),
        ((IMAGES, LABELS - 1), "labels"),
        ((IMAGES, LABELS[:, None]), r"\(61, 1\)"),
        ((IMAGES.byte(), LABELS), "uint8"),
        ([], "labelled"),
        ([["text"]], "labelled"),
        ((IMAGES.expand(-1, 2, -1, -1), LABELS), r"\(61, 2, 4, 4\)"),
    ],
    ids=["none", "float", "negative", "column", "integer", "empty", "text", "channels"],
)
def test_an_error_names_the_option_and_what_was_received(train, received):
    net = Net()
    for sources in ((train, VAL), (TRAIN, train)):
        with pytest.raises(UserError, match="labelled") as error:
            LabelledImages(*sources).scalars(net.backbone, net)
        assert error.match(received)


def measure_on_device(device: str) -> float:
    net = Net().to(device)
    return knn_of(LabelledImages(TRAIN, VAL), net)


def test_images_take_the_device_and_the_dtype_of_the_backbone(on_second_device):
    expected = knn_accuracy(Net().eval().backbone)
    assert on_second_device(measure_on_device, second_device.DEVICE) == pytest.approx(expected)
    double = TRAIN[0].double(), TRAIN[1]
    assert knn_of(LabelledImages(double, VAL), Net().bfloat16()) > 100 / CLASSES


def spectra(*views: torch.Tensor) -> dict[str, float]:
    """Return what the features' columns have for these views, under the names of `held_out`."""
    backbone = Net().eval().backbone
    with torch.no_grad():
        features = [backbone(view) for view in views]
    metric = FeatureSpectra(32)
    metric.update(features)
    scalars = metric.compute()
    return {name.replace("features", "held_out"): value for name, value in scalars.items()}


def held_out_scalars(source, **limits: int) -> dict[str, float]:
    net = Net()
    return HeldOut("held_out", source).scalars(net.backbone, net, Limits(**limits))


def test_held_out_images_have_the_spectra_of_the_features_columns():
    expected = spectra(IMAGES)
    assert expected.keys() <= COLUMNS.keys()
    assert {"erank/held_out_centred", "alpha_req_r2/held_out"} <= expected.keys()
    sources = {
        "tensor": IMAGES,
        "batches": DataLoader(IMAGES, 7, shuffle=True),
        "labelled": TRAIN,
        "list": [IMAGES[:5], IMAGES[5:]],
        "dict": [{"pixel_values": IMAGES, "labels": LABELS}],
    }
    for name, source in sources.items():
        assert held_out_scalars(source) == pytest.approx(expected), name


def test_views_of_held_out_images_have_lidar():
    views = IMAGES, IMAGES + 0.1 * torch.randn(IMAGES.shape)
    expected = spectra(*views)
    assert expected["lidar/held_out"] > 1
    for source in (views, [[views, LABELS, ["name"]]]):  # a list of a batch with other things
        assert held_out_scalars(source) == pytest.approx(expected)


@pytest.mark.parametrize("batch_size", [1, 7, 61])
def test_of_many_held_out_images_an_evenly_spread_part_is_measured(batch_size):
    """One of eight: multiples of the golden ratio are evenly spread."""
    views = IMAGES, 2 * IMAGES
    loader = DataLoader(TensorDataset(*views), batch_size)
    places = [i for i in range(61) if i * (5**0.5 - 1) / 2 % 1 < 1 / 8]
    expected = spectra(*(view[places] for view in views))
    assert held_out_scalars(loader, max_rows=21) == pytest.approx(expected)


def test_features_of_too_many_dimensions_are_reported_once(caplog):
    net = Net()
    held_out = HeldOut("held_out", IMAGES)
    for _ in range(2):
        assert held_out.scalars(net.backbone, net, Limits(max_features_dim=31)) == {}
    (record,) = caplog.records
    assert "max_features_dim=32" in record.message


def measure_held_out(rank: int, size: int) -> list[dict[str, float]]:
    """Return the spectra of all images, of about 8, and of two of which one process has none."""
    torch.manual_seed(rank)
    # 61 images are 31 batches on one process and 30 on the other.
    loader = DataLoader(TensorDataset(*TRAIN), 1, shuffle=True)
    scalars = [held_out_scalars(loader)]
    for most in (15, 1):  # of 60 places, the first process would use one of 8, the second of 4
        scalars.append(held_out_scalars(DataLoader(IMAGES, 7), max_rows=most))
    return scalars


def test_two_processes_have_the_spectra_of_one(worlds):
    expected = measure_held_out(0, 1)
    assert len({scalars["erank/held_out"] for scalars in expected}) == 3
    for results in worlds(2).run(measure_held_out):
        for scalars, of_one_process in zip(results, expected, strict=True):
            assert scalars == pytest.approx(of_one_process, rel=1e-6, abs=1e-9)


class Tokens(nn.Module):
    """Patch tokens of images, without class token: a 4 x 4 image has 4 patches."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.backbone = nn.Sequential(nn.Conv2d(1, 6, 2, 2), nn.BatchNorm2d(6))

    @torch.no_grad()
    def change(self):
        self.backbone[0].weight[:3] += 0.5

    @torch.no_grad()
    def patches(self):
        return self.eval().backbone(IMAGES[:32]).flatten(2).mT


def test_patches_are_compared_with_the_first_trained_epoch_also_in_a_resumed_run(tmp_path):
    net = Tokens()
    patches = Patches("held_out", IMAGES, tmp_path)
    untrained = patches.scalars(net.backbone, net, 0)
    assert untrained == {"erank/patches": pytest.approx(float(patch_rank(net.patches())))}
    assert untrained.keys() | {"drift/patches"} <= COLUMNS.keys()
    net.change()
    reference = patch_grams(net.patches())
    assert patches.scalars(net.backbone, net, 1)["drift/patches"] == 0
    net.change()
    row = patches.scalars(net.backbone, net, 2)
    drift = float(gram_drift(patch_grams(net.patches()), reference))
    assert drift > 0.1
    # Cosines are stored in float16, whose relative error is 5e-4.
    assert row["drift/patches"] == pytest.approx(drift, abs=1e-3)
    resumed = Patches("held_out", DataLoader(IMAGES, 40), tmp_path)
    assert resumed.scalars(net.backbone, net, 2) == row


def test_a_reference_of_other_images_or_of_a_later_epoch_is_replaced(tmp_path):
    net = Tokens()
    Patches("held_out", IMAGES, tmp_path).scalars(net.backbone, net, 3)
    net.change()
    other_images = Patches("held_out", IMAGES + 1, tmp_path)
    assert other_images.scalars(net.backbone, net, 4)["drift/patches"] == 0
    net.change()
    trained_again = Patches("held_out", IMAGES + 1, tmp_path)
    assert trained_again.scalars(net.backbone, net, 2)["drift/patches"] == 0
    net.change()
    assert trained_again.scalars(net.backbone, net, 3)["drift/patches"] > 0


def test_the_reference_is_a_small_file(tmp_path):
    net = Tokens()
    images = torch.zeros(32, 1, 64, 64)
    Patches("held_out", images, tmp_path).scalars(net.backbone, net, 1)
    (file,) = tmp_path.iterdir()
    assert file.stat().st_size < 3.1e6


def measure_patches_on_each_process(rank: int, size: int, folder: str) -> list[dict[str, float]]:
    net = Tokens()
    loader = DataLoader(TensorDataset(*TRAIN), 32, sampler=DistributedSampler(IMAGES, size, rank))
    patches = Patches("labelled (val)", loader, Path(folder))
    scalars = []
    for epoch in (1, 2):
        net.change()
        scalars.append(patches.scalars(net.backbone, net, epoch))
    return scalars


def test_processes_return_the_patches_of_the_first(worlds, tmp_path):
    first, second = worlds(2).run(measure_patches_on_each_process, str(tmp_path))
    assert first == second
    assert first[1]["drift/patches"] > 0
