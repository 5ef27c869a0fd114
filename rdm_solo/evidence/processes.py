"""The runs of a study, several at a time."""

import logging
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from typing import Any, TypeVar

import torch
from tqdm import tqdm  # type: ignore[import-untyped, unused-ignore]

T = TypeVar("T")


def run_all(
    measure: Callable[..., T], tasks: Sequence[Sequence[Any]], jobs: int, add: Callable[[T], None]
) -> None:
    """``measure(*task)`` of each task in ``jobs`` processes; ``add`` takes their results."""
    with ProcessPoolExecutor(jobs, get_context("spawn"), _silence) as pool:
        futures = [pool.submit(measure, *task) for task in tasks]
        for future in tqdm(as_completed(futures), total=len(futures), unit="run"):
            add(future.result())


def _silence() -> None:
    """No warnings, one thread."""
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
