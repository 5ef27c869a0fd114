"""Takes out of error messages and tracebacks what says who and where somebody is."""

import contextlib
import getpass
import os
import re
import socket
import sys
import tempfile
from pathlib import Path
from typing import Any

# The folders of an absolute path; its last part says which file it is. In quotes they have blanks.
QUOTED = re.compile(r"""(['"])(?:[A-Za-z]:|~\w*)?[\\/][^'"\n]*[\\/]([^'"\n/\\]*)\1""")
FOLDERS = re.compile(r"(?<![\w.<>])(?:[A-Za-z]:|~\w*)?[\\/](?:[^\\/\s'\"<>|:,;()]+[\\/])+")
# Numbers of machines, and names of at least three parts that end as those of networks do.
ADDRESS = re.compile(
    r"\b\d{1,3}(?:\.\d{1,3}){3}\b|\b(?:[\da-f]{1,4}:){4,7}[\da-f]{1,4}\b"
    r"|\b(?:[a-z\d-]+\.){2,}(?:com|org|net|edu|gov|io|local|lan|internal|cluster|[a-z]{2})\b"
)


def scrubbed(value: Any) -> Any:
    """The same with every text in it scrubbed; keys and numbers stay.

    >>> scrubbed({"error": ["no /home/anna/data/x.png", 2.5]})
    {'error': ['no .../x.png', 2.5]}
    >>> scrubbed("no file '/mnt/a secret/of 2024/x.png' on login1.cluster.example.com or ~anna/b/c")
    "no file '.../x.png' on ... or .../c"
    """
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, dict):
        return {key: scrubbed(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [scrubbed(item) for item in value]
    return value


def _text(text: str) -> str:
    for folder in _folders():
        text = text.replace(folder, "...")
    text = QUOTED.sub(r"\1.../\2\1", text)
    text = FOLDERS.sub(".../", text)
    for word in _names():
        text = re.sub(rf"(?<![A-Za-z0-9]){re.escape(word)}(?![A-Za-z0-9])", "...", text)
    return ADDRESS.sub("...", text)


def _folders() -> list[str]:
    """Folders that may have blanks in their names, the longest first."""
    known = [sys.prefix, sys.base_prefix, tempfile.gettempdir(), *sys.path]
    with contextlib.suppress(RuntimeError, OSError):
        known += [str(Path.home()), os.getcwd()]
    return sorted({x for x in known if len(x) > 1}, key=len, reverse=True)


def _names() -> list[str]:
    """This machine's and its user's names, the longest first. root is everybody's."""
    found = {socket.gethostname(), *socket.gethostname().split(".")[:1]}
    with contextlib.suppress(Exception):  # where nobody knows the user's number
        found.add(getpass.getuser())
    found = {name for name in found if len(name) > 1} - {"root", "localhost"}
    return sorted(found, key=len, reverse=True)
