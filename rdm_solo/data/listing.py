"""Lists the images of a folder: what is found, what is refused, where links lead."""

import logging
import os
import stat
from collections.abc import Container, Mapping, Sequence
from pathlib import Path

from rdm_solo.data.image_files import Unreadable, cannot_be_read, check_regular
from rdm_solo.data.images import REMEDY, DataError
from rdm_solo.messages import printable

log = logging.getLogger("rdm_solo")

EXTENSIONS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".ppm", ".pgm")


def _entries(folder: str | Path) -> list[os.DirEntry[str]]:
    """What lies in a folder, by name."""
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        raise DataError(
            f"the folder {printable(folder)} cannot be read ({error.strerror}): repair or remove it"
        ) from error


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """Also of a link; DataError where that leads nowhere, since what is gone may be a folder."""
    if entry.is_file(follow_symlinks=False):  # the listing itself says so, without another look
        return False
    try:
        return stat.S_ISDIR(os.stat(entry.path).st_mode)
    except OSError as error:
        if entry.name.startswith(".") or is_image(entry.name):
            return False
        why = cannot_be_read(entry.path, error)
        raise DataError(f"{printable(entry.path)} {why}: repair or remove it") from error


def folders(root: Path) -> list[str]:
    """The names of the folders in a folder, sorted; hidden ones are left out."""
    return [e.name for e in _entries(root) if not e.name.startswith(".") and _is_folder(e)]


def loose_image(root: Path) -> str:
    """The name of an image that lies in the folder itself, where there is one."""
    return next((e.name for e in _entries(root) if is_image(e.name) and not _is_folder(e)), "")


def is_image(name: str) -> bool:
    """Whether a name ends as an image's does, and is not hidden."""
    return not name.startswith(".") and name.lower().endswith(EXTENSIONS)


def _check_file(entry: os.DirEntry[str]) -> None:
    """Refuse what has an image's name and is no file."""
    try:
        if not entry.is_file(follow_symlinks=False):
            check_regular(os.stat(entry.path))
    except OSError as error:
        why = cannot_be_read(entry.path, error)
        raise DataError(f"{printable(entry.path)} {why}: {REMEDY}") from error
    except Unreadable as error:
        raise DataError(f"{printable(entry.path)} {error}: {REMEDY}") from error


def images(top: Path, root: Path, skip_broken: bool, links: list[str]) -> list[bytes]:
    """Every image below ``top``, sorted by path, relative to ``root``.

    Links are followed and added to ``links``, but for one to a folder that it lies in itself.
    """
    found: list[bytes] = []
    seen: set[str] = set()
    waiting = [str(top)]
    while waiting:
        here = waiting.pop()
        real = os.path.realpath(here)
        if real in seen:
            continue
        seen.add(real)
        within = os.path.relpath(here, root)
        folders = []
        for entry in _entries(here):
            if is_image(entry.name):
                if not skip_broken:
                    _check_file(entry)
                found.append(os.fsencode(os.path.join(within, entry.name)))
            elif not _is_folder(entry):
                continue
            else:
                # A link to a folder that it lies in would bring in everything there.
                around = entry.is_symlink() and _lies_in(real, {os.path.realpath(entry.path)})
                folders += [] if around else [entry.path]
            if entry.is_symlink():
                links.append(entry.path)
        waiting += reversed(folders)
    return found


def warn_of_links(links: Mapping[Path, Sequence[str]]) -> None:
    """Say that links lead from one class into another one, or from `val` into `train`.

    Their images count where the link lies, and where they lie.
    """
    if not any(links.values()):
        return
    homes = {os.path.realpath(top.parent) + os.sep + top.name: top for top in links}
    astray = []
    for home, top in homes.items():
        for link in links[top]:
            leads_to = _lies_in(os.path.realpath(link), homes)
            if leads_to not in ("", home):
                astray.append(f"{printable(link)} into {printable(homes[leads_to])}")
    if astray:
        log.warning(
            f"warning: {len(astray)} link(s) lead from one class folder into another, so that "
            f"images count in both: {'; '.join(astray[:3])}"
        )


def _lies_in(path: str, folders: Container[str]) -> str:
    """The one of those folders that holds the path, or is it; nothing where none does."""
    return next((str(p) for p in (Path(path), *Path(path).parents) if str(p) in folders), "")
