"""Answers to the user: one sentence on the terminal and an exit status."""

import contextlib
import importlib
import logging
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from rdm_solo.messages import UserError

# Third-party warnings that say nothing about the user's run.
NOTICES = (
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
# Lightning logs absent devices, tips and ranks; matplotlib that it lists the machine's fonts.
TALKATIVE = [f"lightning{name}" for name in (".pytorch", ".fabric", "_fabric")]
TALKATIVE += ["pytorch_lightning", "matplotlib.font_manager"]


def start(module: str) -> None:
    """Run ``main`` of a command's module; errors while importing it become sentences as well."""
    with errors_as_sentences():
        importlib.import_module(module).main()


def log_to_terminal() -> None:
    """Print what is logged."""
    logging.getLogger().setLevel(logging.INFO)
    logging.getLogger().addHandler(logging.StreamHandler(sys.stdout))


def silence_notices() -> None:
    """Silence ``NOTICES``, and what the packages in ``TALKATIVE`` log about any run."""
    for name in TALKATIVE:
        logging.getLogger(name).setLevel(logging.WARNING)
    for message in NOTICES:
        warnings.filterwarnings("ignore", message=message)


def fail(message: str) -> NoReturn:
    """Print one sentence and exit with status 2."""
    sys.stderr.write(f"error: {message}\n")  # in one piece: another process may print as well
    raise SystemExit(2)


@contextlib.contextmanager
def errors_as_sentences() -> Iterator[None]:
    """Print errors that answer the user as one sentence, without a traceback."""
    try:
        yield
    except UserError as error:
        fail(str(error))
    except ModuleNotFoundError as error:
        if str(error.name).startswith("rdm_solo"):
            raise
        fail(
            f"{error.name} is not installed; training needs: pip install 'rdm-solo[train]'; "
            "pip install --no-deps solo-learn==1.0.2"
        )


def instantiate(node: Any, **options: Any) -> Any:
    """Call the node's ``_target_`` through Hydra; its errors become one :class:`UserError`."""
    import hydra.utils
    from hydra.errors import InstantiationException

    try:
        return hydra.utils.instantiate(node, **options)
    except InstantiationException as error:
        if isinstance(error.__cause__, UserError):
            raise error.__cause__ from None
        raise UserError(" ".join(str(error).split())) from error


def make_folder(folder: Path, option: str = "out=FOLDER") -> None:
    """Make the folder for results; UserError, which names the option, if it takes no file."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise UserError(f"{folder} cannot be written ({error}): give {option}") from error
