"""Silence third-party notices that say nothing about the user's run, each by name."""

import logging
import warnings


def silence_notices() -> None:
    """Silence the notices named here in this process."""
    # Lightning's lines on absent devices, its tips, and the rank of each process.
    for name in ("lightning.pytorch", "pytorch_lightning", "lightning.fabric", "lightning_fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    # matplotlib's line on its list of fonts, which it makes once on a machine.
    logging.getLogger("matplotlib.font_manager").setLevel(logging.WARNING)
    for message in MESSAGES:
        warnings.filterwarnings("ignore", message=message)


MESSAGES = (
    # Lightning's advice on any machine with SLURM.
    "The `srun` command is available on your system",
    # Lightning 2.6 with torch 2.15: its own use of a class that torch deprecates.
    ".*isinstance.treespec, LeafSpec.*",
    # solo-learn logs its momentum and losses without a batch size; ours are all of one size.
    "Trying to infer the `batch_size`",
    # solo-learn's SwAV and DINO normalise their prototypes by a function that torch deprecates.
    ".*torch.nn.utils.weight_norm.*",
    # Without labels or a validation folder there is nothing to validate on.
    "Total length of `list` across ranks is zero",
    # Lightning counts the workers of a DataLoader; images live on the device here.
    ".*does not have many workers.*",
)
