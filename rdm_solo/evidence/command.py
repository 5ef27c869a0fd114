"""What the commands of the studies share: options, and answers where a run fails."""

import argparse
import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from rdm_solo import cli
from rdm_solo.evidence import table
from rdm_solo.evidence.processes import RunFailed


def run(
    name: str,
    description: str,
    train: Callable[[Path, int, int | None], None],
    write: Callable[[list[table.Line], Path], None],
) -> None:
    """The command of a study with a table of rows and a page.

    ``train(table, jobs, most)`` adds the rows that the table lacks, ``write(rows, out)`` writes
    the page of all rows.
    """
    parser = argparse.ArgumentParser(
        prog=f"python -m rdm_solo.evidence.{name}",
        description=description,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    docs = Path("docs")
    parser.add_argument("--table", type=Path, default=docs / f"{name}.csv", help="file of the rows")
    parser.add_argument(
        "--out", type=Path, default=docs / f"{name}.md", help="page; its figures lie beside it"
    )
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time, one thread each")
    parser.add_argument("--most", type=int, help="runs to add at most; 0 writes the page alone")
    cli.say_anything()
    options = parser.parse_args()
    if options.jobs < 1:
        parser.error(f"--jobs must be at least 1, got {options.jobs}")
    with sentences(parser, options.table):
        train(options.table, options.jobs, options.most)
        rows = table.rows(options.table)
        write(rows, options.out)
    print(f"{options.out} is written from the {len(rows)} runs in {options.table}")


@contextlib.contextmanager
def sentences(parser: argparse.ArgumentParser, where: Path) -> Iterator[None]:
    """Print what went wrong as one sentence, without a traceback.

    ``where`` is named where an error of the file system names no file.
    """
    try:
        yield
    except BrokenProcessPool:
        parser.error("a process of a run was killed, perhaps for memory: repeat with fewer --jobs")
    except OSError as error:
        parser.error(f"{error.filename or where}: {error.strerror or error}")
    except (ValueError, RunFailed) as error:
        parser.error(str(error))
