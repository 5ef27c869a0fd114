"""Train a run from Python, in the same process."""

import contextlib
import datetime
import logging
import os
import re
import sys
import warnings
from collections.abc import Iterator, Mapping
from numbers import Real
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rdm_solo.ground.errors import UserError
from rdm_solo.ground.packages import TRAINING, check_installed
from rdm_solo.notebook.run_tables import Run

UNQUOTED = re.compile(r"(?!(null|true|false|nan|inf)$)[A-Za-z_][\w./-]*", re.IGNORECASE)


def fit(
    options: Mapping[str, Any] = MappingProxyType({}),
    /,
    *,
    folder: str | os.PathLike[str] | None = None,
    quiet: bool = False,
    **more: Any,
) -> Run:
    """Train a run like ``rdm-solo train`` and return it as read from its folder.

    Defaults, checks and results are those of the command, even if it is called repeatedly. Repeat
    the call with the same folder to resume a run that was stopped. The caller's random state is
    restored. A line is printed for each epoch.

    It takes the options of the command. Pass dotted names in a dict, or a section as a dict of its
    own::

        rdm_solo.fit(method="simsiam", filter="target_pow", p=-0.5, seed=1)
        rdm_solo.fit({"optimizer.lr": 0.1, "++trainer.precision": "bf16-mixed"}, max_epochs=50)
        rdm_solo.fit(optimizer={"lr": 0.1}, p={"schedule": "linear", "start": 0, "end": -0.5})
        rdm_solo.fit(resume=run.folder, max_epochs=200)

    Args:
        options, more: options by name.
        folder: the run's folder (``hydra.run.dir``); by default a new one in ``runs/``.
        quiet: whether to print only warnings.

    Raises:
        UserError: a ValueError, if an option is invalid or training diverged.
        KeyboardInterrupt: if Ctrl-C or a notebook's stop button stopped the run after a step.
    """
    check_installed("rdm_solo.fit", *TRAINING)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "IProgress not found")  # tqdm without ipywidgets
        from rdm_solo.ground.lightning import pl
        from rdm_solo.train import compose
        from rdm_solo.train.processes import world_size
        from rdm_solo.train.resume import expand
        from rdm_solo.train.run import run

    overrides = expand(words({**options, **more}))
    if "-m" in overrides:
        raise UserError("fit trains one run: resume a sweep with rdm-solo train.")
    cfg = compose(overrides)
    if world_size(cfg.trainer) > 1:
        raise UserError("fit trains in one process: use rdm-solo train for several.")
    overrides = [option for option in overrides if not option.startswith("hydra.")]
    now = f"{datetime.datetime.now():%Y-%m-%d_%H-%M-%S}"
    path = Path(folder or cfg.resume or f"runs/{now}_{cfg.method.name}_{cfg.filter.name}")
    with _logging_to_stdout(quiet), pl.utilities.seed.isolate_rng():
        run(cfg, path, overrides=overrides)
    return Run(path)


@contextlib.contextmanager
def _logging_to_stdout(quiet: bool) -> Iterator[None]:
    """Print log messages to stdout, unless the caller has configured logging."""
    log = logging.getLogger("rdm_solo")
    level = log.level
    is_configured = log.hasHandlers()
    log.setLevel(logging.INFO)  # train.log has all lines
    handler = logging.StreamHandler(sys.stdout)
    handler.setLevel(logging.WARNING if quiet else logging.INFO)
    if not is_configured:
        log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)


def words(options: Mapping[str, Any]) -> list[str]:
    """Return options as command-line arguments; a dict is a section, unless it is a schedule.

    >>> words({"method": "byol", "p": {"schedule": "linear", "start": 0, "end": -0.5}})
    ['method=byol', 'p={schedule:linear,start:0,end:-0.5}']
    >>> words({"optimizer": {"lr": 0.1, "kwargs": {"nesterov": True}}, "~callbacks.knn": None})
    ['optimizer.lr=0.1', 'optimizer.kwargs.nesterov=True', '~callbacks.knn']
    """
    arguments = []
    for name, value in options.items():
        if name.startswith("~") and value is None:
            arguments.append(name)
        elif isinstance(value, Mapping) and value and "schedule" not in value:
            for key, inner in value.items():
                arguments += words({f"{name}.{key}": inner})
        else:
            arguments.append(f"{name}={_text(name, value)}")
    return arguments


def _text(name: str, value: Any) -> str:
    """Return a value in Hydra's grammar."""
    from hydra.core.override_parser.types import Quote, QuotedString

    if value is None:
        return "null"
    if isinstance(value, Real):
        return str(value)  # Hydra parses True; a float32 becomes -0.3, not -0.30000001192092896
    if isinstance(value, (str, os.PathLike)):
        text = os.fspath(value)
        if UNQUOTED.fullmatch(text):
            return text
        return QuotedString(text, Quote.single).with_quotes()
    if isinstance(value, (list, tuple)):
        entries = [_text(name, entry) for entry in value]
        return f"[{','.join(entries)}]"
    if isinstance(value, Mapping):
        pairs = []
        for key, inner in value.items():
            pairs.append(f"{_text(name, key)}:{_text(name, inner)}")
        return "{" + ",".join(pairs) + "}"
    raise UserError(f"{name} must be a number, text, list or dict, got {value!r:.200}.")
