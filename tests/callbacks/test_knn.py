"""Weighted nearest neighbours against one sort of all similarities, in pieces and processes."""

from types import SimpleNamespace

import pytest
import torch
from support.small_runs import FINISHED, all_rows, configure

from rdm_solo import data, runs
from rdm_solo.callbacks.knn import WeightedKNN
from rdm_solo.cli.instantiation import instantiate
from rdm_solo.observe.neighbours import Neighbours, unit

CLASSES = 5


def make_memory(n: int = 240, seed: int = 0):
    """Return unit rows and their labels."""
    rng = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (n,), generator=rng)
    centres = 0.7 * torch.eye(12)
    noise = torch.randn(n, 12, generator=rng)
    return unit(centres[labels] + noise), labels


def make_neighbours(k: int) -> Neighbours:
    queries, _ = make_memory(30, seed=1)
    return Neighbours(queries, k)


def votes(queries, memory, labels, classes: int, k: int, temperature: float) -> torch.Tensor:
    """Return the scores of all classes from all similarities, in float64, query by query."""
    scores = torch.zeros(len(queries), classes, dtype=torch.float64)
    for row, query in zip(scores, queries.double()):
        similarity, nearest = (memory.double() @ query).sort(descending=True)
        weights = ((similarity[:k] - similarity[0]) / temperature).exp()
        row.index_add_(0, labels[nearest[:k]], weights)
    return scores


def assert_scores(neighbours: Neighbours) -> None:
    expected = votes(neighbours.queries, *make_memory(), CLASSES, neighbours.k, 0.2)
    scores = neighbours.scores(CLASSES, temperature=0.2)
    torch.testing.assert_close(scores.double(), expected, atol=2e-5, rtol=0)


@pytest.mark.parametrize(("rows", "k"), [(1, 20), (7, 1), (240, 500)])
def test_scores_do_not_depend_on_how_the_memory_is_split(rows, k):
    memory, labels = make_memory()
    neighbours = make_neighbours(k)
    for x, y in zip(memory.split(rows), labels.split(rows)):
        neighbours.add(x, y)
        assert neighbours.similarity.numel() <= 30 * k
    assert_scores(neighbours)


def test_votes_survive_a_small_temperature():
    memory, labels = make_memory(50)
    queries = unit(memory + 0.01)
    neighbours = Neighbours(queries, k=10)
    neighbours.add(memory, labels)
    scores = neighbours.scores(CLASSES, temperature=1e-3)
    assert scores.isfinite().all()
    assert torch.equal(scores.argmax(1), labels)


def pixel_accuracy(dataset: data.Dataset) -> float:
    """Return the accuracy of weighted kNN on normalised pixels."""

    def rows(images: data.Images) -> torch.Tensor:
        x = images.images.double() / 255
        mean, std = torch.tensor([dataset.mean, dataset.std], dtype=torch.float64)[..., None, None]
        x = ((x - mean) / std).flatten(1)
        return x / x.norm(dim=1, keepdim=True)

    train, val = dataset.train, dataset.val
    scores = votes(rows(val), rows(train), train.labels, dataset.num_classes, 20, 0.07)
    return 100 * float((scores.argmax(1) == val.labels).double().mean())


def share_of_the_most_frequent_class(dataset: data.Dataset) -> float:
    labels = dataset.val.labels.tolist()
    return 100 * max(map(labels.count, labels)) / len(labels)


def test_pixels_are_classified_once_and_each_accuracy_has_its_chance_level(finished):
    dataset = instantiate(configure(*FINISHED).dataset.source)
    untrained, *epochs = all_rows(finished)
    assert untrained["val/knn_pixels"] == pytest.approx(pixel_accuracy(dataset))
    assert not any("val/knn_pixels" in row for row in epochs)
    expected = share_of_the_most_frequent_class(dataset)
    assert expected > 10
    chances = [row["val/chance"] for row in (untrained, *epochs)]
    assert chances == pytest.approx([expected] * 4)
    assert [epoch.chance for epoch in runs.load(finished).measured_epochs] == chances


def find_and_classify(rank: int, size: int) -> None:
    memory, labels = make_memory()
    neighbours = make_neighbours(k=20)
    # The second process has fewer rows than k.
    sizes = [230, 10]
    rows = memory.split(sizes)[rank]
    neighbours.add(rows, labels.split(sizes)[rank])
    neighbours.merge_processes()
    assert_scores(neighbours)

    dataset = instantiate(configure(*FINISHED).dataset.source)
    memory = data.loader(dataset, "train", 5)
    datamodule = SimpleNamespace(memory_dataloader=lambda: memory)
    knn = WeightedKNN()
    loader = data.loader(dataset, "val", 5)
    accuracy, chance = knn.accuracy(datamodule, loader, torch.nn.Flatten())
    assert float(accuracy) == pytest.approx(pixel_accuracy(dataset))
    assert float(chance) == pytest.approx(share_of_the_most_frequent_class(dataset))


def test_two_processes_find_and_classify_as_one_does(worlds):
    worlds(2).run(find_and_classify)
