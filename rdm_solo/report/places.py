"""Folders on the page: short names that stay apart, and paths in sentences, letter for letter."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from rdm_solo.report.markup import Html, join, tag, typeset

__all__ = ["relative", "verbatim"]


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


def verbatim(text: str, places: Iterable[object]) -> Html:
    """A sentence whose formulas are set, but for these folders and what lies below them.

    >>> verbatim("σ^2: runs/p=x^2/summary.json is broken.", ["runs/p=x^2"])
    'σ<sup>2</sup>: <code>runs/p=x^2/summary.json</code> is broken.'
    """
    # A bare name may be a word or a number of the sentence, mostly with nothing to be set in it.
    known = {p for p in map(str, places) if re.search(r"[/\\]", p) or typeset(p) != join(p)}
    if not known:
        return typeset(text)
    folders = "|".join(map(re.escape, sorted(known, key=len, reverse=True)))
    parts = re.split(rf"((?<![\w./\\])(?:{folders})(?!\w)(?:[/\\][\w.-]*\w)*)", text)
    return join(*(tag("code", part) if i % 2 else typeset(part) for i, part in enumerate(parts)))
