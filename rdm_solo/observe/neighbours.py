"""An exact weighted kNN classifier, whose memory bank is added in pieces."""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from rdm_solo.ground.devices import has_float64
from rdm_solo.ground.distributed import gather

Batches = Iterable[tuple[Tensor, ...]]  # features, labels and, on many processes, indices
UNITS = 2**24  # similarities are rounded to multiples of 1 / UNITS


class Accuracy(NamedTuple):
    """The accuracy of kNN, and that of always guessing the most frequent class, in per cent."""

    knn: Tensor
    chance: Tensor


class Neighbours:
    r"""The k most similar of all rows added so far, for each of ``n`` unit queries.

    Adding ``m`` rows computes ``n * m`` similarities and keeps ``n * k``, so the memory bank can
    have any size. Similarities are computed in float64 and rounded to a multiple of 2^-24, so
    equal rows are equally similar in any block. Of equally similar rows, those come first whose
    index has the smaller :func:`spread`. So the result does not depend on how the rows are split,
    and a memory that is sorted by class favours none. Rows that an encoder computed in other
    batches may differ in float32's last digits, which then order them.

    >>> neighbours = Neighbours(torch.eye(2), k=1)
    >>> for row, label in zip(torch.eye(2), [1, 0]):
    ...     neighbours.add(row[None], torch.tensor([label]))
    >>> neighbours.scores(classes=2, temperature=0.1).argmax(1)
    tensor([1, 0])
    """

    def __init__(self, queries: Tensor, k: int) -> None:
        self.queries = queries.double()
        self.k = k
        self._count = 0  # rows added so far
        # Sort keys: the high bits are the rounded similarity, and the low 32 bits break ties.
        self.order = torch.empty(len(queries), 0, dtype=torch.long, device=queries.device)
        self.labels = self.order

    @property
    def similarity(self) -> Tensor:
        """Return the neighbours' similarities ``(n, k)``, which descend."""
        return (self.order >> 32).double() / UNITS

    def add(self, rows: Tensor, labels: Tensor, index: Tensor | None = None) -> None:
        """Add unit rows ``(m, d)`` with labels ``(m,)`` and indices in the whole data set.

        By default rows are numbered in the order in which they are added.
        """
        if index is None:
            index = torch.arange(self._count, self._count + len(rows))
        self._count += len(rows)
        device = self.queries.device
        labels, index = labels.to(device), index.to(device)
        similarity = self.queries @ rows.to(device).double().mT
        units = (similarity.nan_to_num(-1.0) * UNITS).round().long()
        order = (units << 32) + (2**32 - 1 - spread(index))
        k = min(self.k, len(rows))
        nearest, at = order.topk(k, dim=1)
        order = torch.cat([self.order, nearest], dim=1)
        labels = torch.cat([self.labels, labels[at]], dim=1)
        self._keep(order, labels)

    def merge_processes(self) -> None:
        """Keep the k most similar of all processes' neighbours of the same queries."""
        # Processes may differ in the number of neighbours, which `gather` allows in the first axis.
        order = torch.cat(gather(self.order.mT.contiguous()))
        labels = torch.cat(gather(self.labels.mT.contiguous()))
        self._keep(order.mT, labels.mT)

    def scores(self, classes: int, temperature: float) -> Tensor:
        r"""Return class scores :math:`\sum_{j \in kNN} e^{\cos_j / T} [y_j = c]`, ``(n, classes)``.

        The nearest neighbour's similarity is subtracted, so low temperatures do not overflow.
        """
        similarity = self.similarity
        votes = ((similarity - similarity[:, :1]) / temperature).exp()
        scores = votes.new_zeros(len(votes), classes)
        scores.scatter_add_(1, self.labels, votes)
        return scores.float()  # a GPU adds in any order, and equal sums must stay equal

    def _keep(self, order: Tensor, labels: Tensor) -> None:
        """Replace the neighbours by the first k of these."""
        k = min(self.k, order.shape[1])
        self.order, at = order.topk(k, dim=1)
        self.labels = labels.gather(1, at)


def spread(index: Tensor) -> Tensor:
    """Return a number in [0, 2^32) for each index, different and even for consecutive indices.

    It is the index times the golden ratio (Knuth's multiplicative hashing).

    >>> [round(x, 3) for x in (spread(torch.arange(5)) / 2**32).tolist()]
    [0.0, 0.618, 0.236, 0.854, 0.472]
    """
    return (index * 2654435769) % 2**32


@torch.no_grad()
def accuracy(memory: Batches, queries: Batches, k: int, temperature: float) -> Accuracy:
    """Return the accuracy of weighted kNN and its chance level, the same on all processes.

    ``memory`` and ``queries`` are this process's batches of features ``(N, d)`` and labels
    ``(N,)``; each process needs a query. With several processes, the memory also has the images'
    indices in the whole data set ``(N,)``, so that the number of processes does not change which
    of equal features are neighbours.

    >>> batches = [(torch.eye(2), torch.tensor([0, 1]))]
    >>> accuracy(batches, batches, k=1, temperature=0.07)
    Accuracy(knn=tensor(100.), chance=tensor(50.))
    """
    query_batches = []
    label_batches = []
    for features, y, *_ in queries:
        query_batches.append(unit(features))
        label_batches.append(y)
    rows = torch.cat(gather(torch.cat(query_batches)))
    labels = torch.cat(gather(torch.cat(label_batches))).to(rows.device)

    neighbours = Neighbours(rows, k)
    for features, y, *index in memory:
        neighbours.add(unit(features), y, *index)
    neighbours.merge_processes()
    classes = int(neighbours.labels.max()) + 1
    scores = neighbours.scores(classes, temperature)
    is_correct = scores.argmax(1) == labels
    most_frequent = labels.bincount().max()
    return Accuracy(100 * is_correct.float().mean(), 100 * most_frequent / len(labels))


def unit(x: Tensor) -> Tensor:
    """Return rows of unit length in float64, on the CPU if their device has no float64."""
    if not has_float64(x.device):
        x = x.cpu()
    return torch.nn.functional.normalize(x.double(), dim=1)
