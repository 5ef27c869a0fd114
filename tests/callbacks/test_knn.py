"""Weighted nearest neighbours against one sort of all similarities, in pieces and processes."""

import pytest
import torch

from rdm_solo.callbacks.knn import Neighbours, unit


def bank(n: int = 240, d: int = 12, classes: int = 5, seed: int = 0):
    rng = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (n,), generator=rng)
    return unit(torch.randn(n, d, generator=rng) + 0.7 * torch.eye(d)[labels]), labels


def check(neighbours: Neighbours, k: int) -> None:
    """Compare with all similarities at once, in float64, query by query."""
    memory, labels = bank()
    similarity = neighbours.queries.double() @ memory.double().mT
    want = torch.zeros(len(similarity), 5, dtype=torch.float64)
    for row, values in enumerate(similarity):
        for index in values.argsort(descending=True)[:k]:
            want[row, labels[index]] += ((values[index] - values.max()) / 0.2).exp()
    scores = neighbours.scores(5, temperature=0.2).double()
    torch.testing.assert_close(scores, want, atol=2e-5, rtol=0)


@pytest.mark.parametrize(("piece", "k"), [(1, 20), (7, 1), (240, 500)])
def test_scores_are_those_of_one_sort_however_the_memory_arrives(piece, k):
    memory, labels = bank()
    neighbours = Neighbours(bank(30, seed=1)[0], k)
    for low in range(0, len(memory), piece):
        neighbours.add(memory[low : low + piece], labels[low : low + piece])
        assert neighbours.similarity.numel() <= 30 * k
    check(neighbours, k)


def test_votes_survive_a_small_temperature():
    memory, labels = bank(50)
    neighbours = Neighbours(unit(memory + 0.01), k=10)
    neighbours.add(memory, labels)
    scores = neighbours.scores(classes=5, temperature=1e-3)
    assert scores.isfinite().all()
    assert (scores.argmax(1) == labels).all()


def compare(rank: int, world: int) -> None:
    memory, labels = bank()
    neighbours = Neighbours(bank(30, seed=1)[0], k=20)
    part = slice(0, 230) if rank == 0 else slice(230, 240)  # the second holds fewer rows than k
    neighbours.add(memory[part], labels[part])
    neighbours.merge_processes()
    check(neighbours, 20)


def test_two_processes_find_what_one_finds(worlds):
    worlds(2).run(compare)
