"""Accuracy of weighted k nearest neighbours, computed as in a run."""

from torch import Tensor

from rdm_solo.observe.neighbours import Neighbours, unit


def knn_accuracy(memory: Tensor, labels: Tensor, queries: Tensor, expected: Tensor) -> float:
    """Return the accuracy of the queries in per cent (cosine, k = 20, temperature 0.07)."""
    neighbours = Neighbours(unit(queries), k=20)
    neighbours.add(unit(memory), labels)
    classes = int(labels.max()) + 1
    guesses = neighbours.scores(classes, temperature=0.07).argmax(1)
    correct = (guesses == expected).float()
    return float(100 * correct.mean())
