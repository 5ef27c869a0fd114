"""Train a loop for two epochs, healthy and with each of its mistakes.

    python -m support.loops LOOP

A run's folder is named after the mistake, and its messages are in a file beside the folder.
"""

import logging
import os
import sys

import torch

from support.loops import LOOPS, plain, trainers
from support.loops.digits import digits

if __name__ == "__main__":
    name = sys.argv[1]
    loop = getattr(plain, name, None) or getattr(trainers, name)
    log = logging.getLogger("rdm_solo")
    if "RANK" in os.environ:
        torch.distributed.init_process_group("gloo")
    rank = int(os.environ.get("RANK", 0))
    for failure in ("healthy", *LOOPS[name]):
        torch.manual_seed(rank)
        handler = logging.FileHandler(f"{failure}.{rank}.log")
        log.addHandler(handler)
        # The mistakes are found without labels, and in one loop also with them.
        has_labels = failure == "healthy" or name == "fabric"
        options = {"labelled": digits()} if has_labels else {}
        loop(failure, failure, quiet=True, **options)
        log.removeHandler(handler)
    if "RANK" in os.environ:
        torch.distributed.destroy_process_group()
