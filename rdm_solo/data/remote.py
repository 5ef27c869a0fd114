"""Copies of shards that lie behind URLs: each is fetched once, whole, and then read as any file."""

import contextlib
import hashlib
import importlib.util
import logging
import re
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from rdm_solo.data.images import DataError
from rdm_solo.messages import printable

try:
    import fcntl
except ImportError:  # Windows: two processes may then fetch the same shard, and the last one stays
    fcntl = None  # type: ignore[assignment]

log = logging.getLogger("rdm_solo")

# webdataset gives a URL to programs, for some kinds by way of a shell: nothing else gets there.
HARMLESS = re.compile(r"[A-Za-z0-9+.-]+:[A-Za-z0-9_.~:/?=@%+,-]+")


def local_copy(url: str, cache: Path | None, download: bool) -> Path:
    """The copy of a URL's content in ``cache``, fetched where it is not there yet."""
    if url.startswith("pipe:") or not HARMLESS.fullmatch(url):
        raise DataError(
            f"dataset=shards does not open {printable(url)}: a URL may have letters, digits and "
            "_.~:/?=@%+,- alone, and pipe: is not run; fetch the shards by yourself then"
        )
    if cache is None:
        raise DataError(
            f"{printable(url)} is copied before it is read: set dataset.cache to a folder with "
            "room for all shards"
        )
    digest = hashlib.blake2b(url.encode(), digest_size=6).hexdigest()
    last = re.sub(r"[^A-Za-z0-9_.-]", "_", url.partition("?")[0].rsplit("/", 1)[-1])
    copy = cache / f"{digest}-{last.removesuffix('.tar')}.tar"
    if copy.exists():
        return copy
    if not download:
        raise DataError(
            f"{printable(url)} has no copy in {printable(cache)} yet: "
            "set dataset.download=true to copy it"
        )
    if importlib.util.find_spec("webdataset") is None:
        raise DataError(
            f"{printable(url)} needs the package webdataset, which is not installed: pip install "
            "webdataset, or give dataset.train and dataset.val as local files"
        )
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with _alone(copy):
            if not copy.exists():
                _fetch(url, copy)
    except Exception as error:  # webdataset's own are of many kinds
        raise DataError(
            f"{printable(url)} cannot be copied to {printable(cache)} "
            f"({type(error).__name__}: {printable(error)})"
        ) from error
    return copy


def _fetch(url: str, copy: Path) -> None:
    import webdataset  # type: ignore[import-not-found, import-untyped, unused-ignore]

    log.info(f"copying {printable(url)} to {printable(copy)}")
    partial = copy.with_name(f".{copy.name}.{secrets.token_hex(8)}")
    try:
        with webdataset.gopen(url) as stream, open(partial, "wb") as file:
            shutil.copyfileobj(stream, file, 2**20)
        partial.replace(copy)
    finally:
        partial.unlink(missing_ok=True)


@contextlib.contextmanager
def _alone(copy: Path) -> Iterator[None]:
    """While no other process of this machine fetches the same."""
    if fcntl is None:
        yield
        return
    with open(copy.with_suffix(".lock"), "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
