"""The paper's tables and figures as data, and the commands that run them."""

from rdm_solo.paper.tables import (
    FIGURE_EPOCHS,
    FIGURES,
    Figure,
    Row,
    command,
    markdown,
    preset,
    rows,
)

__all__ = ["FIGURES", "FIGURE_EPOCHS", "Figure", "Row", "command", "markdown", "preset", "rows"]
