"""The runs of a study, several at a time."""

import logging
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import Any, TypeVar

import torch
from tqdm import tqdm  # type: ignore[import-untyped, unused-ignore]

from rdm_solo.messages import first_line

T = TypeVar("T")


class RunFailed(RuntimeError):
    """A run of a study ended with an error, which the message names."""


def run_all(
    measure: Callable[..., T], tasks: Sequence[Sequence[Any]], jobs: int, add: Callable[[T], None]
) -> None:
    """``measure(*task)`` of each task in ``jobs`` processes; ``add`` takes their results.

    Once a run has failed, at most one more begins; the results of those that had begun are added
    before RunFailed is raised.
    """
    with ProcessPoolExecutor(jobs, get_context("spawn"), _silence) as pool:
        left = {pool.submit(measure, *task): task for task in tasks}
        try:
            for future in tqdm(as_completed(list(left)), total=len(left), unit="run"):
                task = left.pop(future)
                add(_result(future, task))
        except BaseException as error:
            pool.shutdown(cancel_futures=True)  # waits for those that have begun
            for future in () if isinstance(error, OSError) else left:  # of a table, a full disk
                if not future.cancelled() and not future.exception():
                    add(future.result())
            raise


def _result(future: Future[T], task: Sequence[Any]) -> T:
    try:
        return future.result()
    except BrokenProcessPool:
        raise
    except Exception as error:
        raise RunFailed(
            f"the run of {', '.join(map(str, task))} failed ({type(error).__name__}: "
            f"{first_line(error)}); what had ended by then is in the table."
        ) from error


def _silence() -> None:
    """No warnings, one thread."""
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
