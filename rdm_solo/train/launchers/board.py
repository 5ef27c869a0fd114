"""Shows the progress of a sweep's runs that go on at once."""

import contextlib
import os
import re
import sys
from collections.abc import Sequence

from tqdm import tqdm

BAR = 12
EPOCH = re.compile(r"epoch (\d+)/(\d+): (.*)")  # what a run says in a log at an epoch's end
RANKS = re.compile(r"erank online \S+ target \S+ gap")  # of which a row has room for the gap alone
# Lines that a user wants to see at once; the others are in each run's train.log.
URGENT = ("error: ", "warning: ", "! ")


class Board:
    """In a terminal a row for each run that goes on; in a log, a line for each epoch.

    ``names`` are those of all the runs of the sweep, and ``rows`` how many go on at once.
    """

    def __init__(self, names: Sequence[str], rows: int) -> None:
        self.width = max(map(len, names))
        self.runs, self.ended_runs = len(names), 0
        self.urgent: set[str] = set()
        self.moves = sys.stderr.isatty()
        kept = {"file": sys.stderr, "leave": False, "disable": not self.moves}
        self.rows = [tqdm(bar_format="{desc}", position=row, **kept) for row in range(rows)]
        self.total = tqdm(bar_format="{desc}", position=rows, **kept)

    def show_line(self, row: int | None, name: str, line: str) -> None:
        """Show a line that the run of that name has printed; ``row`` is None where it has none."""
        if found := EPOCH.fullmatch(line):
            epoch, epochs, values = int(found[1]), int(found[2]), RANKS.sub("gap", found[3])
            full = round(BAR * epoch / max(epochs, 1))
            self.show(row, name, f"{epoch}/{epochs} [{'#' * full}{'.' * (BAR - full)}]  {values}")
            if not self.moves:
                self.tell(name, line)
        elif line.startswith(URGENT) and line not in self.urgent:  # many runs may say the same
            self.urgent.add(line)
            self.tell(name, line)

    def tell(self, name: str, line: str) -> None:
        """Print a line about the run of that name."""
        self.write(f"[{name.ljust(self.width)}] {line}")

    def write(self, line: str) -> None:
        """Print a line above the rows; where nobody reads any more, the runs go on."""
        with contextlib.suppress(OSError):
            tqdm.write(line, file=sys.stdout)
            sys.stdout.flush()

    def show(self, row: int | None, name: str, words: str) -> None:
        """What a row says from here on."""
        if row is None:
            return
        text = f"[{name.ljust(self.width)}] {words}" if name else words
        self._draw(self.rows[row], text)

    def ended(self, row: int | None) -> None:
        """Count one more run that is over, whose row is free."""
        self.ended_runs += 1
        self.show(row, "", "")
        self._draw(self.total, f"{self.ended_runs} of {self.runs} runs have ended")

    def close(self) -> None:
        """Take the rows away."""
        for bar in (*self.rows, self.total):
            bar.close()

    def _draw(self, bar: "tqdm[None]", text: str) -> None:
        if not self.moves:
            return
        try:
            columns = os.get_terminal_size(sys.stderr.fileno()).columns or 80
            bar.set_description_str(text[: columns - 1])
        except OSError:  # the terminal was closed
            self.moves = False
