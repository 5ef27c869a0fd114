"""The paper's tables and figures as data, and the commands that run them."""

from rdm_solo.paper.published import Row, figures, markdown, preset, rows

__all__ = ["Row", "figures", "markdown", "preset", "rows"]
