"""Weighted nearest neighbours against one sort of all similarities, in pieces and processes."""

from __future__ import annotations

import pytest
import torch

from rdm_solo.callbacks.knn import Neighbours, unit


def bank(n: int = 240, d: int = 12, classes: int = 5, seed: int = 0):
    rng = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (n,), generator=rng)
    return unit(torch.randn(n, d, generator=rng) + 0.7 * torch.eye(d)[labels]), labels


def votes(queries, memory, labels, classes, k, temperature):
    """All similarities at once, in float64, query by query."""
    similarity = queries.double() @ memory.double().mT
    scores = torch.zeros(len(queries), classes, dtype=torch.float64)
    for row, values in enumerate(similarity):
        for index in values.argsort(descending=True)[:k]:
            scores[row, labels[index]] += ((values[index] - values.max()) / temperature).exp()
    return scores


@pytest.mark.parametrize("piece", [1, 7, 100, 240])
@pytest.mark.parametrize("k", [1, 20, 500])
def test_scores_are_those_of_one_sort_however_the_memory_arrives(piece, k):
    memory, labels = bank()
    queries, _ = bank(30, seed=1)
    found = Neighbours(queries, k)
    for low in range(0, len(memory), piece):
        found.add(memory[low : low + piece], labels[low : low + piece])
    expected = votes(queries, memory, labels, 5, k, temperature=0.2)
    torch.testing.assert_close(
        found.scores(5, temperature=0.2).double(), expected, atol=2e-5, rtol=0
    )


def test_no_more_than_queries_times_piece_is_held():
    memory, labels = bank(4000)
    queries, _ = bank(50, seed=1)
    found = Neighbours(queries, k=10)
    largest = 0
    for low in range(0, len(memory), 100):
        found.add(memory[low : low + 100], labels[low : low + 100])
        largest = max(largest, found.similarity.numel())
    assert largest == 50 * 10


def test_votes_survive_a_small_temperature():
    memory, labels = bank(50)
    near = unit(memory + 0.01 * torch.randn(memory.shape, generator=torch.Generator()))
    found = Neighbours(near, k=10)
    found.add(memory, labels)
    scores = found.scores(classes=5, temperature=1e-3)
    assert scores.isfinite().all()
    assert (scores.argmax(1) == labels).all()


def compare(rank: int, world: int) -> None:
    memory, labels = bank()
    queries, _ = bank(30, seed=1)
    found = Neighbours(queries, k=20)
    # Unequal parts; the second holds fewer rows than k.
    part = slice(0, 230) if rank == 0 else slice(230, 240)
    found.add(memory[part], labels[part])
    found.merge_processes()
    expected = votes(queries, memory, labels, 5, 20, temperature=0.2)
    torch.testing.assert_close(
        found.scores(5, temperature=0.2).double(), expected, atol=2e-5, rtol=0
    )


def test_two_processes_find_what_one_finds(worlds):
    worlds(2).run(compare)
