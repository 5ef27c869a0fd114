"""The command ``rdm-solo measure``, whose ``--help`` does not import torch."""

import sys
from collections.abc import Sequence
from pathlib import Path

from omegaconf import DictConfig

from rdm_solo.cli import arguments

SWEEP = ("-m", "--multirun")  # the flags of Hydra's that a value does not follow


def with_encoders(argv: Sequence[str]) -> list[str]:
    """Return the arguments with the encoders as the option ``encoders``.

    An encoder is an existing path, or an argument that is neither an option nor a flag's value.

    >>> with_encoders(["timm/vit_tiny", "dataset=digits", "--cfg", "job"])
    ['dataset=digits', '--cfg', 'job', "encoders=['timm/vit_tiny']"]
    """
    encoders = []
    options = []
    previous = ""
    for argument in argv:
        of_flag = previous.startswith("-") and previous not in SWEEP
        is_option = "=" in argument or argument.startswith("-") or of_flag
        if is_option and not Path(argument).exists():
            options.append(argument)
        else:
            encoders.append(arguments.in_quotes(argument))
        previous = argument
    if encoders:
        options.append(f"encoders=[{','.join(encoders)}]")
    return options


def _job(cfg: DictConfig) -> None:
    from rdm_solo.measure.side_by_side import measure  # with torch and matplotlib: seconds

    measure(cfg)


arguments.command(_job, "measure", with_encoders(sys.argv[1:]))
