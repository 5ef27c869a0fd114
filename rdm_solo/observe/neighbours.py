"""An exact weighted kNN classifier, whose memory bank is added in pieces."""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from rdm_solo.ground.distributed import gather

Batches = Iterable[tuple[Tensor, Tensor]]  # features and labels


class Accuracy(NamedTuple):
    """The accuracy of kNN, and that of always guessing the most frequent class, in per cent."""

    knn: Tensor
    chance: Tensor


class Neighbours:
    r"""The k most similar of all rows added so far, for each of ``n`` unit queries.

    Adding ``m`` rows computes ``n * m`` similarities and keeps ``n * k``, so the memory bank can
    have any size. The result does not depend on how the rows are split.

    >>> neighbours = Neighbours(torch.eye(2), k=1)
    >>> for row, label in zip(torch.eye(2), [1, 0]):
    ...     neighbours.add(row[None], torch.tensor([label]))
    >>> neighbours.scores(classes=2, temperature=0.1).argmax(1)
    tensor([1, 0])
    """

    def __init__(self, queries: Tensor, k: int) -> None:
        self.queries = queries
        self.k = k
        self.similarity = queries.new_empty(len(queries), 0)
        self.labels = self.similarity.long()

    def add(self, rows: Tensor, labels: Tensor) -> None:
        """Add unit rows ``(m, d)`` and their labels ``(m,)``."""
        similarity = self.queries @ rows.mT
        k = min(self.k, len(rows))
        nearest, index = similarity.topk(k, dim=1)
        similarity = torch.cat([self.similarity, nearest], dim=1)
        labels = torch.cat([self.labels, labels[index]], dim=1)
        self._keep(similarity, labels)

    def merge_processes(self) -> None:
        """Keep the k most similar of all processes' neighbours of the same queries."""
        # Processes may differ in the number of neighbours, which `gather` allows in the first axis.
        similarity = torch.cat(gather(self.similarity.mT.contiguous()))
        labels = torch.cat(gather(self.labels.mT.contiguous()))
        self._keep(similarity.mT, labels.mT)

    def scores(self, classes: int, temperature: float) -> Tensor:
        r"""Return class scores :math:`\sum_{j \in kNN} e^{\cos_j / T} [y_j = c]`, ``(n, classes)``.

        The nearest neighbour's similarity is subtracted, so low temperatures do not overflow.
        """
        nearest = self.similarity[:, :1]
        votes = ((self.similarity - nearest) / temperature).exp()
        scores = votes.new_zeros(len(votes), classes)
        return scores.scatter_add_(1, self.labels, votes)

    def _keep(self, similarity: Tensor, labels: Tensor) -> None:
        """Replace the neighbours by the k most similar of these."""
        k = min(self.k, similarity.shape[1])
        self.similarity, index = similarity.topk(k, dim=1)
        self.labels = labels.gather(1, index)


@torch.no_grad()
def accuracy(memory: Batches, queries: Batches, k: int, temperature: float) -> Accuracy:
    """Return the accuracy of weighted kNN and its chance level, the same on all processes.

    ``memory`` and ``queries`` are this process's batches of features ``(N, d)`` and labels
    ``(N,)``; each process needs a query.

    >>> batches = [(torch.eye(2), torch.tensor([0, 1]))]
    >>> accuracy(batches, batches, k=1, temperature=0.07)
    Accuracy(knn=tensor(100.), chance=tensor(50.))
    """
    query_batches = []
    label_batches = []
    for features, y in queries:
        query_batches.append(unit(features))
        label_batches.append(y)
    rows = torch.cat(gather(torch.cat(query_batches)))
    labels = torch.cat(gather(torch.cat(label_batches)))

    neighbours = Neighbours(rows, k)
    for features, y in memory:
        neighbours.add(unit(features), y)
    neighbours.merge_processes()
    classes = int(neighbours.labels.max()) + 1
    scores = neighbours.scores(classes, temperature)
    is_correct = scores.argmax(1) == labels
    most_frequent = labels.bincount().max()
    return Accuracy(100 * is_correct.float().mean(), 100 * most_frequent / len(labels))


def unit(x: Tensor) -> Tensor:
    """Return rows of unit length in float32."""
    return torch.nn.functional.normalize(x.float(), dim=1)
