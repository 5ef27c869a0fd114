"""Text on the page: raised exponents, lowered indices, short paths."""

import os
import re
from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup, escape


def typeset(text: str) -> Markup:
    """Escape text, raise its exponents and lower the indices of λ and C; leave markup as it is.

    >>> typeset("σ^-0.5 < λ_z")
    Markup('σ<sup>-0.5</sup> &lt; λ<sub>z</sub>')
    """
    if isinstance(text, Markup):
        return text
    raised = re.sub(r"\^(\([^)\n]*\)|[-+]?[\w.]*\w)", r"<sup>\1</sup>", str(escape(text)))
    return Markup(re.sub(r"(?<=[λC])_(\w)", r"<sub>\1</sub>", raised))


def relative(paths: Sequence[Path]) -> list[str]:
    """Shorten paths to what follows the folder that holds them all.

    >>> relative([Path("runs/byol/30"), Path("runs/swav/30")])
    ['byol/30', 'swav/30']
    """
    absolute = [Path(os.path.abspath(path)) for path in paths]
    try:
        shared = os.path.commonpath([path.parent for path in absolute])
    except ValueError:  # no path, or several drives
        return [str(path) for path in absolute]
    return [path.relative_to(shared).as_posix() for path in absolute]
