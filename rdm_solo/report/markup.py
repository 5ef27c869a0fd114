"""HTML whose text is escaped unless it was made here."""

from __future__ import annotations

import re
from html import escape

__all__ = ["Html", "join", "tag", "typeset"]

VOID = ("br", "hr", "img", "link", "meta")


class Html(str):
    """Text that is HTML already; any other string is escaped when it enters a tag."""

    __slots__ = ()


def join(*parts: str, between: str = "") -> Html:
    """The parts as HTML.

    >>> join("a < b", Html("<br>"))
    'a &lt; b<br>'
    """
    safe = [part if isinstance(part, Html) else escape(part) for part in parts]
    return Html(between.join(safe))


def tag(name: str, /, *children: str, **attributes: str | bool | None) -> Html:
    """An element; ``class_`` and ``for_`` lose their underscore, inner ones become dashes.

    An attribute that is None or False is left out, one that is True has no value.

    >>> tag("a", "R&D", href='x"y', class_="link", hidden=False)
    '<a href="x&quot;y" class="link">R&amp;D</a>'
    """
    written = ""
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        key = key.rstrip("_").replace("_", "-")
        written += f" {key}" if value is True else f' {key}="{escape(str(value))}"'
    if name in VOID:
        return Html(f"<{name}{written}>")
    return Html(f"<{name}{written}>{join(*children)}</{name}>")


def typeset(text: str) -> Html:
    """Text whose exponents are set high and whose indices of λ and C are set low.

    >>> typeset("σ^-0.5 < λ_z")
    'σ<sup>-0.5</sup> &lt; λ<sub>z</sub>'
    """
    if isinstance(text, Html):
        return text
    raised = re.sub(r"\^(\([^)\n]*\)|[-+]?[\w.]*\w)", r"<sup>\1</sup>", escape(text))
    return Html(re.sub(r"(?<=[λC])_(\w)", r"<sub>\1</sub>", raised))
