"""Run folders as a stranger could make them: mutated files, links, pipes, and code to be run."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import random
import shutil
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

PAYLOADS = ("os.system", "builtins.exec", "builtins.eval", "sympy.sympify", "torch.load")
PAYLOADS += ("subprocess.run", "evilmod.f", "rdm_solo.data.folders.os.system", "hydra.utils.call")
NAMES = ("metrics.csv", "summary.json", "format.json", "linear.json", "linear.csv", "roles.json")
NAMES += ("loggers.json", "failed.txt", ".hydra/overrides.yaml", ".hydra/config.yaml")
NAMES += ("spectra/epoch_0001.npz", "checkpoints/last.ckpt", "owner.json")
FOLDERS = ("report", "export", "figures", "spectra", "checkpoints", "tensorboard", ".hydra")
FOLDERS += (".earlier_run",)
LAUGHS = "a: &a [x,x,x,x,x,x,x,x]\n" + "".join(
    f"{b}: &{b} [*{a},*{a},*{a},*{a},*{a},*{a},*{a},*{a}]\n"
    for a, b in zip("abcdefghi", "bcdefghij")
)


# What a mutation may raise where an earlier one is in its way.
IN_THE_WAY = (OSError, ValueError, KeyError, AttributeError, TypeError, yaml.YAMLError)


def _own(folder: Path, name: str) -> Path:
    """A file of the folder that a mutation may change; ValueError where an earlier one is in the
    way: a link that leads out, a pipe, or 10 GB."""
    path = folder / name
    # Path.resolve raises on a circle of links before Python 3.13.
    inside = Path(os.path.realpath(path)).is_relative_to(folder.resolve())
    if not inside or (path.exists() and not path.is_file()):
        raise ValueError(path)
    if path.exists() and path.stat().st_size > 2**24:
        raise ValueError(path)
    return path


class Stranger:
    """Mutates copies of a run's folder; ``canary`` is what its code would write."""

    def __init__(self, base: Path, place: Path, draw: random.Random) -> None:
        self.base, self.place, self.draw = base, place, draw
        self.canary = place / "canary"
        self.elsewhere = place / "elsewhere"
        self.elsewhere.mkdir(parents=True)
        (self.elsewhere / "secret").write_text("SECRET-IN-A-FILE")
        modules = place / "modules"
        modules.mkdir()
        code = f"open({str(self.canary)!r}, 'w').write('imported')\ndef f(*a, **k): return a[0]\n"
        (modules / "evilmod.py").write_text(code)
        sys.path.append(str(modules))
        self.pickle = place / "evil.pickle"
        self.pickle.write_bytes(pickle.dumps(_Evil(f"touch {self.canary}")))

    def folder(self, number: int) -> tuple[Path, list[str]]:
        """A copy with one to three mutations, and what they are."""
        folder = self.place / f"run_{number}"
        shutil.copytree(self.base, folder)
        kinds = [self.config, self.config, self.text, self.file, self.link, self.arrays, self.json]
        kinds += [self.set_aside]
        done = []
        for _ in range(self.draw.randint(1, 3)):
            kind = self.draw.choice(kinds)
            with contextlib.suppress(*IN_THE_WAY):
                done.append(f"{kind.__name__}: {kind(folder)}")
        return folder, done

    def value(self) -> Any:
        draw = self.draw
        code = f"__import__('os').system('touch {self.canary}')"
        target = draw.choice(PAYLOADS)
        options: list[Any] = [
            *(None, True, "", "a word", 0, -1, 2, 0.5, 10**9, 10**12, 10**30, -(10**18), 1e308),
            *(
                float("nan"),
                float("inf"),
                "ünï\u202ecode",
                "\x00",
                "x\x1b[31m",
                [],
                {},
                [1, [2, 3]],
            ),
            *("${oc.env:HOME}", "${p}", "${dataset}", "${${p}:x}", "???", "../../etc", "/dev/zero"),
            *(target, code, str(self.pickle), str(self.canary), "https://example.com/x", "*"),
            {"_target_": target, "_args_": [code]},
            {"_target_": target, "f": str(self.pickle), "command": f"touch {self.canary}"},
            {"_target_": "functools.partial", "_args_": [{"_target_": target}]},
            {"a": {"b": {"c": 3}}},
            {1: 2, False: None},
            ["x"] * 50,
        ]
        return draw.choice(options)

    def config(self, folder: Path) -> str:
        path = _own(folder, ".hydra/config.yaml")
        tree = yaml.safe_load(path.read_text())
        nodes: list[tuple[Any, Any, str]] = []

        def walk(node: Any, name: str) -> None:
            for key, value in list(node.items() if isinstance(node, dict) else enumerate(node)):
                nodes.append((node, key, f"{name}.{key}"))
                if isinstance(value, (dict, list)):
                    walk(value, f"{name}.{key}")

        walk(tree, "")
        node, key, name = self.draw.choice(nodes)
        value = self.value()
        how = self.draw.randrange(8)
        if how == 0:
            del node[key]
        elif how == 1 and isinstance(node, dict):
            key = self.draw.choice(
                ["_target_", "_partial_", "_args_", "_recursive_", "mine", "plugins"]
            )
            node[key] = value
        elif how == 2:
            tree["dataset"]["source"] = {"_target_": self.draw.choice(PAYLOADS), "_args_": [value]}
            name = ".dataset.source"
        elif how == 3:
            tree["filter"] = {
                "name": "own",
                "branch": "target",
                "function": self.draw.choice(PAYLOADS),
            }
            name = ".filter"
        else:
            node[key] = value
        path.write_text(yaml.safe_dump(tree, allow_unicode=True))
        return f"{name} ({how}) {value!r:.60}"

    def text(self, folder: Path) -> str:
        name = self.draw.choice(NAMES)
        path, draw = _own(folder, name), self.draw
        data = path.read_bytes() if path.is_file() else b"{}"
        how = draw.randrange(7)
        if how == 0:
            data = data[: draw.randrange(len(data) + 1)]
        elif how == 1:
            flipped = bytearray(data)
            for _ in range(draw.randint(1, 20)):
                flipped[draw.randrange(len(flipped))] = draw.randrange(256)
            data = bytes(flipped)
        elif how == 2:
            data = draw.choice(
                [LAUGHS, "a: &a [*a]", "[" * 5000, "{" * 90000, "x: " + "9" * 9000]
            ).encode()
        elif how == 3:
            data = f"!!python/object/apply:os.system ['touch {self.canary}']".encode()
        elif how == 4:
            data = data.replace(
                b"1", draw.choice([b"nan", b"-7", b"1e400", b"x", b"\xff", b"1" * 5000])
            )
        elif how == 5:
            data = b",".join([b"epoch"] * 200_000) + b"\n1\n"
        else:
            data = draw.randbytes(200)
        path.write_bytes(data)
        return f"{name} ({how})"

    def file(self, folder: Path) -> str:
        name = self.draw.choice(NAMES)
        path, how = folder / name, self.draw.randrange(4)
        path.unlink()
        if how == 1:
            os.mkfifo(path)
        elif how == 2:
            path.mkdir()
        elif how == 3:
            with open(path, "wb") as file:
                file.truncate(10 * 2**30)
        return f"{name} ({['removed', 'a pipe', 'a folder', '10 GB'][how]})"

    def link(self, folder: Path) -> str:
        name = self.draw.choice(NAMES + FOLDERS)
        path = folder / name
        if name in FOLDERS:
            shutil.rmtree(path, ignore_errors=True)
            path.symlink_to(self.draw.choice([self.elsewhere, Path("/dev"), path]))
        else:
            path.unlink(missing_ok=True)
            ends = [
                self.elsewhere / "secret",
                Path("/dev/zero"),
                Path("/etc/passwd"),
                self.pickle,
                path,
            ]
            path.symlink_to(self.draw.choice(ends))
        return f"{name} -> {os.readlink(path)}"

    def set_aside(self, folder: Path) -> str:
        """What a kill leaves while another run takes the folder, and a fault in it."""
        aside = folder / ".earlier_run"
        shutil.copytree(self.base, aside)
        kind = self.draw.choice([self.text, self.file, self.link])
        return f".earlier_run/{kind(aside)}"

    def json(self, folder: Path) -> str:
        name = self.draw.choice(["summary.json", "linear.json", "loggers.json", "roles.json"])
        path = _own(folder, name)
        tree = json.loads(path.read_text()) if path.is_file() else {"a": 1}
        key = self.draw.choice(list(tree))
        value = self.value()
        inner = tree[key]
        if isinstance(inner, dict) and inner and self.draw.random() < 0.5:
            inner[self.draw.choice(list(inner))] = value
        else:
            tree[key] = value
        path.write_text(json.dumps(tree, default=str))
        return f"{name} {key} {value!r:.60}"

    def arrays(self, folder: Path) -> str:
        draw, how = self.draw, self.draw.randrange(7)
        path = _own(folder, "spectra/epoch_0001.npz")
        checkpoint = _own(folder, "checkpoints/last.ckpt")
        if how == 0:
            np.savez(path, epoch=np.array(1), lam_online=np.array([_Evil(f"touch {self.canary}")]))
        elif how == 1:
            np.savez(path, epoch=np.array(draw.choice([-3, 10**12, 1])), lam_online=np.ones((3, 4)))
        elif how == 2:
            header = io.BytesIO()
            fake = {"descr": "<f8", "fortran_order": False, "shape": (10**12,)}
            np.lib.format.write_array_header_1_0(header, fake)
            with zipfile.ZipFile(path, "w") as file:
                file.writestr("lam_online.npy", header.getvalue())
        elif how == 3:
            with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
                file.writestr("epoch.npy", b"\0" * 10**7)
        elif how == 4:
            shutil.copy(self.pickle, checkpoint)
        elif how == 5:
            torch.save(
                {"epoch": draw.choice([0, -1, 10**20, "x"]), "state_dict": {"a": 1}}, checkpoint
            )
        else:
            saved = torch.load(checkpoint, weights_only=True)
            name = draw.choice(list(saved["state_dict"]))
            saved["state_dict"][name] = draw.choice(
                [torch.zeros(1), torch.full((3,), torch.nan), 3]
            )
            torch.save(saved, checkpoint)
        return f"arrays ({how})"


class _Evil:
    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (self.command,)


PROCESSES = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn")
NETWORK = ("socket.connect", "socket.getaddrinfo", "socket.bind", "urllib.Request")
CHANGES = ("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.symlink", "os.link", "os.truncate")


class Watch:
    """What this process does that reading a folder must not: an audit hook, on while asked."""

    def __init__(self) -> None:
        self.allowed: Path | None = None
        self.seen: list[str] = []
        sys.addaudithook(self._hook)

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.allowed is None:
            return
        if event in PROCESSES or event in NETWORK:
            self.seen.append(f"{event} {arguments!r:.200}")
        elif event == "import" and arguments[0] == "evilmod":
            self.seen.append("import evilmod")
        elif event == "pickle.find_class" and arguments[0] in ("os", "posix", "evilmod"):
            self.seen.append(f"{event} {arguments}")
        elif event == "open" and isinstance(arguments[0], (str, bytes)):
            path, mode, flags = arguments
            writes = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) if isinstance(flags, int) else 0
            if writes or (mode and set(mode) & set("wax+")):
                self._changes(os.fsdecode(path), event)
        elif event in CHANGES:
            made = arguments[1:2] if event == "os.symlink" else arguments[:2]
            opened = arguments[1] if event in ("os.remove", "os.rmdir") else -1  # a folder's number
            place = "" if opened == -1 else os.readlink(f"/proc/self/fd/{opened}")
            for path in made:
                if isinstance(path, (str, bytes)):
                    self._changes(os.path.join(place, os.fsdecode(path)), event)

    def _changes(self, path: str, event: str) -> None:
        allowed, self.allowed = self.allowed, None  # resolving must not ask again
        assert allowed is not None
        parent = Path(os.path.realpath(Path(path).parent)) / Path(path).name
        if not parent.is_relative_to(allowed) and path != os.devnull and "__pycache__" not in path:
            self.seen.append(f"{event} {path}")
        self.allowed = allowed

    @contextlib.contextmanager
    def only_inside(self, folder: Path) -> Iterator[list[str]]:
        """What is seen in the block is in the list; changes inside the folder are allowed."""
        self.seen, self.allowed = [], folder.resolve()
        try:
            yield self.seen
        finally:
            self.allowed = None
