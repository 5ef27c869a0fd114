"""Weighted nearest neighbours against one sort of all similarities, in pieces and processes."""

import pytest
import torch

from rdm_solo.callbacks.knn import Neighbours, unit

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


def assert_scores(neighbours: Neighbours) -> None:
    """Compare with all similarities at once, in float64, query by query."""
    memory, labels = make_memory()
    similarity = neighbours.queries.double() @ memory.double().mT
    expected = torch.zeros(len(similarity), CLASSES, dtype=torch.float64)
    for row, values in enumerate(similarity):
        order = values.argsort(descending=True)
        for index in order[: neighbours.k]:
            difference = values[index] - values.max()
            expected[row, labels[index]] += (difference / 0.2).exp()
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


def merge_two_processes(rank: int, size: int) -> None:
    memory, labels = make_memory()
    neighbours = make_neighbours(k=20)
    # The second process has fewer rows than k.
    sizes = [230, 10]
    rows = memory.split(sizes)[rank]
    neighbours.add(rows, labels.split(sizes)[rank])
    neighbours.merge_processes()
    assert_scores(neighbours)


def test_two_processes_find_what_one_finds(worlds):
    worlds(2).run(merge_two_processes)
