"""Opens image files: regular files alone, of formats that hold pixels, no larger than memory.

A data set may come from anywhere. What waits for a writer (a FIFO), runs other programs (EPS) or
unpacks to gigabytes is refused by its name before any of its pixels is decoded.
"""

import io
import os
import stat
import warnings
from pathlib import Path

from PIL import Image, UnidentifiedImageError

from rdm_solo.messages import printable

# The content decides which of these an image is, whatever its name ends in. Pillow reads 40 more,
# one of which (EPS) starts Ghostscript.
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "PPM", "GIF")

# 11,585 by 11,585 pixels. Cameras have up to 102 million, ImageNet less; a decoder needs up to
# 10 bytes of memory a pixel (with what a worker has anyway, 1.7 GB were measured). And no file of
# that many pixels is larger than this.
MAX_PIXELS = 2**27
MAX_BYTES = 8 * MAX_PIXELS

KINDS = {
    stat.S_ISDIR: "a folder",
    stat.S_ISFIFO: "a FIFO",
    stat.S_ISSOCK: "a socket",
    stat.S_ISBLK: "a device",
    stat.S_ISCHR: "a device",
}


class Unreadable(Exception):
    """An image that cannot be decoded, and why."""


def check_regular(state: os.stat_result) -> None:
    """Unreadable where it is no regular file, or is larger than any image that is decoded."""
    if not stat.S_ISREG(state.st_mode):
        kind = next((words for test, words in KINDS.items() if test(state.st_mode)), "special")
        raise Unreadable(f"is {kind}, not a file")
    if state.st_size > MAX_BYTES:
        raise Unreadable(f"has {state.st_size} bytes; images of at most {MAX_BYTES} are read")


def open_image(path: Path) -> Image.Image:
    """The image in a file; see `image_in`."""
    return image_in(content_of(path))


def content_of(path: Path) -> bytes:
    """What a regular file holds; Unreadable where it cannot be read."""
    try:
        check_regular(os.stat(path))
        with open(path, "rb", opener=_open_without_waiting) as file:
            check_regular(os.fstat(file.fileno()))  # it may have changed since
            return file.read()
    except OSError as error:
        raise Unreadable(cannot_be_read(path, error)) from error
    except ValueError as error:  # such as a name with a null character
        raise Unreadable(
            f"cannot be opened ({type(error).__name__}: {printable(error)})"
        ) from error


def image_in(content: bytes) -> Image.Image:
    """The image that these bytes are, its header read and its pixels not yet.

    Whatever a decoder raises on garbage (OSError, SyntaxError, struct.error, ...) is Unreadable.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of metadata, and of less than MAX_PIXELS
            image = Image.open(io.BytesIO(content), formats=FORMATS)
    except UnidentifiedImageError as error:
        raise Unreadable("is no image" if content else "is empty") from error
    except Image.DecompressionBombError as error:
        raise Unreadable(f"has more than {MAX_PIXELS} pixels, too many to decode") from error
    except Exception as error:
        raise Unreadable(
            f"cannot be opened ({type(error).__name__}: {printable(error)})"
        ) from error
    if not 0 < image.width * image.height <= MAX_PIXELS:
        raise Unreadable(
            f"has {image.width} x {image.height} pixels; from 1 to {MAX_PIXELS} can be decoded"
        )
    return image


def cannot_be_read(path: str | Path, error: OSError) -> str:
    """Why, as a clause that follows the path."""
    link = "; it is a link" if os.path.islink(path) else ""
    return f"cannot be read ({error.strerror or error}{link})"


def _open_without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
