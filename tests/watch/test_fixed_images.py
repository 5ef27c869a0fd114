"""Measurements on a user's images: right on one process and on two, and without a trace."""

import random

import numpy as np
import pytest
import torch
from support import second_device
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler, TensorDataset

from rdm_solo.ground.errors import UserError
from rdm_solo.watch.fixed_images import LabelledImages

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


def test_accuracy_is_that_of_the_definition_from_tensors_and_from_loaders():
    net = Net()
    expected = knn_accuracy(Net().eval().backbone)
    assert 100 / CLASSES < expected < 100
    measured = LabelledImages(TRAIN, VAL)
    assert measured.accuracy(net.backbone, net) == pytest.approx(expected)
    assert measured.classes == CLASSES
    loaders = [DataLoader(TensorDataset(*data), 7, shuffle=True) for data in (TRAIN, VAL)]
    measured = LabelledImages(*loaders, k=5)
    assert measured.accuracy(net.backbone, net) == pytest.approx(
        knn_accuracy(net.eval().backbone, 5)
    )


def trained(measure) -> tuple[dict, list]:
    """Train two epochs, call ``measure(net)`` after each, and return weights and random draws."""
    net = Net()
    random.seed(0)
    np.random.seed(0)
    loader = DataLoader(TensorDataset(*TRAIN), 16, shuffle=True)
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    for _ in range(2):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x), y).backward()
            optimizer.step()
        measure(net)
    draws = [torch.rand(()).item(), np.random.rand(), random.random()]
    gradients = {f"grad of {name}": p.grad for name, p in net.named_parameters()}
    return {**net.state_dict(), **gradients}, draws


def assert_no_trace(measure) -> None:
    def measure_and_compare_modes(net: Net) -> None:
        modes = [module.training for module in net.modules()]
        measure(net)
        assert [module.training for module in net.modules()] == modes

    weights, draws = trained(measure_and_compare_modes)
    expected_weights, expected_draws = trained(lambda net: None)
    assert draws == expected_draws
    for name, value in expected_weights.items():
        assert torch.equal(weights[name], value), name


def test_accuracy_leaves_no_trace_in_training():
    val = DataLoader(Augmented(), 5, shuffle=True)
    measured = LabelledImages(TRAIN, val)
    accuracies = []
    assert_no_trace(lambda net: accuracies.append(measured.accuracy(net.backbone, net)))
    assert len(set(accuracies)) == 2, "training changes it"


def test_modes_are_restored_if_the_measurement_fails():
    net = Net()
    net.backbone[0] = nn.Linear(5, 5)
    with pytest.raises(UserError):
        LabelledImages(TRAIN, VAL).accuracy(net.backbone, net)
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
    accuracy = LabelledImages(*sources).accuracy(counted, counted)
    torch.distributed.all_reduce(counted.counts)
    assert counted.counts.tolist() == [1] * start
    assert accuracy == pytest.approx(knn_accuracy(lambda x: x.flatten(1)[:, 1:]))


@pytest.mark.parametrize("kind", ["tensors", "loader", "sampler"])
def test_two_processes_take_each_image_once_and_find_what_one_finds(worlds, kind):
    worlds(2).run(measure_on_each_process, kind)


def measure_with_ddp(rank: int, size: int) -> None:
    net = Net()
    ddp = nn.parallel.DistributedDataParallel(net.backbone)
    batch_norm = net.backbone[1]
    batch_norm.running_mean.fill_(rank)  # DDP would copy rank 0's
    net.backbone = ddp
    LabelledImages(TRAIN, VAL).accuracy(net.backbone, net)
    assert batch_norm.running_mean.tolist() == [rank] * 8


def test_buffers_of_a_distributed_backbone_are_not_synchronised(worlds):
    worlds(2).run(measure_with_ddp)


def test_images_take_the_dtype_of_the_backbone():
    net = Net().to(torch.bfloat16)
    double = TRAIN[0].double(), TRAIN[1]
    assert LabelledImages(double, VAL).accuracy(net.backbone, net) > 100 / CLASSES


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
            LabelledImages(*sources).accuracy(net.backbone, net)
        assert error.match(received)


def test_a_missing_backbone_is_an_error_that_names_the_option():
    with pytest.raises(UserError, match="backbone="):
        LabelledImages(TRAIN, VAL).accuracy(None, Net())


def measure_on_device(device: str) -> float:
    net = Net().to(device)
    return LabelledImages(TRAIN, VAL).accuracy(net.backbone, net)


def test_images_go_to_the_device_of_the_backbone(on_second_device):
    expected = knn_accuracy(Net().eval().backbone)
    assert on_second_device(measure_on_device, second_device.DEVICE) == pytest.approx(expected)
