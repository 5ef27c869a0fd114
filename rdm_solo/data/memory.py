"""Memory of batches, used again as soon as nobody holds a batch that lies in it."""

import math
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

Block: TypeAlias = np.ndarray[Any, np.dtype[np.float32]]

# So many spare blocks of a size are kept: two views of a step's batch, and of the next one's.
SPARE = 4


class BatchMemory:
    """Lends float32 tensors, and lends the same memory again when the tensor before is gone.

    A large block that the allocator gives back to the system arrives anew as pages that the system
    first has to fill with zeros: for a batch of 32 views of 224 pixels that took as long as a
    quarter of the work of making them.

    >>> memory = BatchMemory()
    >>> first = memory.lend((2, 3))
    >>> held, place = first[1], first.data_ptr()
    >>> del first  # `held` lies in the same memory, which is therefore still in use
    >>> memory.lend((2, 3)).data_ptr() == place
    False
    >>> del held
    >>> memory.lend((2, 3)).data_ptr() == place
    True
    """

    def __init__(self) -> None:
        self._spare: dict[int, deque[Block]] = {}

    def lend(self, shape: Sequence[int]) -> Tensor:
        """A tensor of that shape on the CPU, filled with anything."""
        size = math.prod(shape)
        spare = self._spare.setdefault(size, deque(maxlen=SPARE))
        try:
            block = spare.pop()
        except IndexError:
            block = np.empty(size, np.float32)
        # A tensor's storage keeps the array that it was made of, and nothing else keeps this one.
        lent = block.view()
        weakref.finalize(lent, spare.append, block).atexit = False
        return torch.from_numpy(lent).view(*shape)
