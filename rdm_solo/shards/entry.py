"""The command python -m rdm_solo.shards."""

import argparse
import logging
from pathlib import Path

from rdm_solo import cli, data
from rdm_solo.messages import CannotWrite, UserError
from rdm_solo.shards.writing import write_part

DESCRIPTION = """Write the images that dataset=folder dataset.root=FOLDER reads as tar files, with
the index of each: OUT/train-000000.tar and so on, and OUT/val-000000.tar where there is a
validation folder. Files are copied byte for byte, in the same order: dataset=shards
dataset.root=OUT trains on the same views."""


def main() -> None:
    """Write the shards of both parts and say how many there are."""
    parser = argparse.ArgumentParser("python -m rdm_solo.shards", description=DESCRIPTION)
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="the folder of images")
    parser.add_argument("out", metavar="OUT", type=Path, help="a new or empty folder")
    parser.add_argument(
        "--megabytes", type=int, default=500, help="size of a shard (default: %(default)s)"
    )
    given = parser.parse_args()
    if given.megabytes < 1:
        parser.error(f"--megabytes must be at least 1, got {given.megabytes}")
    cli.say_anything()
    logging.getLogger("rdm_solo").setLevel(logging.WARNING)
    with cli.errors_as_sentences():
        source = data.folder(given.folder)
        try:
            given.out.mkdir(parents=True, exist_ok=True)
            if any(given.out.iterdir()):
                raise UserError(f"{given.out} is not empty: give the name of a new folder")
            for part, files in (("train", source.train), ("val", source.val)):
                if isinstance(files, data.Files):
                    written = write_part(
                        files, given.out, part, source.labelled, given.megabytes * 10**6
                    )
                    print(f"{part}: {len(files)} images in {written} shards")
        except OSError as error:
            raise CannotWrite(Path(error.filename or given.out), error) from error
    print(f"python -m rdm_solo.train dataset=shards dataset.root={given.out}")
