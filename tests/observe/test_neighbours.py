"""Equally similar rows: neither their order nor the number of processes changes the accuracy."""

import torch

from rdm_solo.observe import neighbours

TRIES = 300
ROWS = 240
CLASSES = 5


def batches(seed: int):
    """Return 30 images, each eight times under random labels, and 40 queries."""
    draw = torch.Generator().manual_seed(seed)
    images = torch.randn(30, 16, generator=draw)
    order = torch.randperm(ROWS, generator=draw)
    memory = images.repeat(8, 1)[order], torch.randint(CLASSES, (ROWS,), generator=draw)
    queries = torch.randn(40, 16, generator=draw), torch.randint(CLASSES, (40,), generator=draw)
    return memory, queries


def accuracy(memory, queries) -> float:
    return float(neighbours.accuracy(memory, [queries], k=20, temperature=0.07).knn)


def accuracies_in_pieces(rank: int, size: int) -> list[float]:
    """Return the accuracies if each image goes to a random process, in pieces of random sizes."""
    accuracies = []
    for seed in range(TRIES):
        (x, labels), queries = batches(seed)
        draw = torch.Generator().manual_seed(seed)
        owner = torch.randint(size, (ROWS,), generator=draw)
        (mine,) = (owner == rank).nonzero(as_tuple=True)
        cuts = torch.randint(len(mine), (3,), generator=draw).sort().values
        pieces = mine.tensor_split(cuts)
        memory = [(x[index], labels[index], index) for index in pieces]
        own_queries = [part[rank::size] for part in queries]
        accuracies.append(accuracy(memory, own_queries))
    return accuracies


def test_equally_similar_images_give_one_accuracy_in_any_pieces_on_any_number_of_processes(worlds):
    at_once = []
    for seed in range(TRIES):
        memory, queries = batches(seed)
        at_once.append(accuracy([memory], queries))
    assert accuracies_in_pieces(0, 1) == at_once
    for accuracies in worlds(2).run(accuracies_in_pieces):
        assert accuracies == at_once


def test_a_memory_that_is_sorted_by_class_favours_no_class():
    """Saturated features: of 1,000 equal rows, the last 900 are of the query's class."""
    memory = torch.ones(1000, 4), (torch.arange(1000) >= 100).long()
    queries = torch.ones(1, 4), torch.ones(1, dtype=torch.long)
    assert accuracy([memory], queries) == 100


def test_a_feature_that_is_nan_is_no_neighbour():
    x = torch.eye(3)
    x[2] = torch.nan
    memory = x, torch.tensor([0, 1, 2])
    assert accuracy([memory], (x[:2], torch.tensor([0, 1]))) == 100
