"""Text on the page: exponents and indices set in their places, and paths left as they are."""

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from markupsafe import Markup, escape


def typeset(text: str) -> Markup:
    """Escaped text with raised exponents, and with lowered indices of λ and C.

    >>> typeset("σ^-0.5 < λ_z")
    Markup('σ<sup>-0.5</sup> &lt; λ<sub>z</sub>')
    """
    if isinstance(text, Markup):
        return text
    raised = re.sub(r"\^(\([^)\n]*\)|[-+]?[\w.]*\w)", r"<sup>\1</sup>", str(escape(text)))
    return Markup(re.sub(r"(?<=[λC])_(\w)", r"<sub>\1</sub>", raised))


def relative(paths: Sequence[Path]) -> list[str]:
    """Each path from the folder on that holds them all.

    >>> relative([Path("runs/byol/30"), Path("runs/swav/30")])
    ['byol/30', 'swav/30']
    >>> relative([Path("runs/byol/30")])
    ['30']
    """
    full = [Path(os.path.abspath(path)) for path in paths]
    try:
        shared = os.path.commonpath([path.parent for path in full])
    except ValueError:  # none, or several drives
        return [str(path) for path in full]
    return [path.relative_to(shared).as_posix() for path in full]


def verbatim(text: str, folders: Iterable[object]) -> Markup:
    """A typeset sentence in which these folders, and paths below them, stay letter for letter.

    >>> str(verbatim("σ^2: runs/p=x^2/summary.json is broken.", ["runs/p=x^2"]))
    'σ<sup>2</sup>: <code>runs/p=x^2/summary.json</code> is broken.'
    """
    # A bare name may be a word or a number of the sentence, mostly with nothing to be set in it.
    known = {f for f in map(str, folders) if re.search(r"[/\\]", f) or typeset(f) != escape(f)}
    if not known:
        return typeset(text)
    names = "|".join(map(re.escape, sorted(known, key=len, reverse=True)))
    parts = re.split(rf"((?<![\w./\\])(?:{names})(?!\w)(?:[/\\][\w.-]*\w)*)", text)
    code = Markup("<code>{}</code>")
    return Markup().join(code.format(p) if i % 2 else typeset(p) for i, p in enumerate(parts))
