"""Render the icons that many designers have drawn under the same name.

    npm pack @iconify/json && tar xzf iconify-json-*.tgz
    pip install resvg-py
    python -m studies.switch.icons package icons.npz

A name that at least 50 sets share is a class. Sets under non-commercial or GPL licences are left
out. All sets of one author are a family, and a family is either in the training part or in the
validation part. The images are not part of this repository; ``icons.txt`` lists the classes.
"""

import argparse
import hashlib
import io
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from tqdm import tqdm

MIN_SETS = 50
SIZE = 16  # pixels
EXCLUDED_LICENCES = ("GPL", "NC")
COPY = 0.95  # correlation from which two images of a class count as copies
VALIDATION = 0.4  # share of the families


def allowed(collections: Mapping[str, Any]) -> list[str]:
    """Return the sets whose licence allows every use without conditions on other code."""
    sets = []
    for name, description in collections.items():
        licence = description["license"]
        text = licence.get("spdx") or licence["title"]
        if not any(word in text for word in EXCLUDED_LICENCES):
            sets.append(name)
    return sorted(sets)


def family(name: str, description: Mapping[str, Any]) -> str:
    """Return the author, under whose name the versions and styles of a set are published."""
    return description.get("author", {}).get("name") or name.split("-")[0].rstrip("0123456789")


def in_validation(family: str) -> bool:
    """Return whether a family is in the validation part, by a hash of its name."""
    digest = hashlib.sha256(family.encode()).digest()
    return int.from_bytes(digest[:4], "big") < VALIDATION * 2**32


def shared_names(sets: Mapping[str, Any]) -> list[str]:
    """Return the names that at least ``MIN_SETS`` sets share, the most common one first."""
    counts: dict[str, int] = defaultdict(int)
    for content in sets.values():
        for name in content["icons"]:
            counts[name] += 1
    names = [name for name, count in counts.items() if count >= MIN_SETS]
    return sorted(names, key=lambda name: (-counts[name], name))


def render(content: Mapping[str, Any], name: str) -> np.ndarray:
    """Return an icon as bytes ``(SIZE, SIZE)``: white strokes on black."""
    import resvg_py

    icon = content["icons"][name]
    left, top = icon.get("left", 0), icon.get("top", 0)
    width = icon.get("width", content.get("width", 16))
    height = icon.get("height", content.get("height", 16))
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'color="black" width="{SIZE}" height="{SIZE}" viewBox="{left} {top} {width} {height}">'
        f"{icon['body']}</svg>"
    )
    png = resvg_py.svg_to_bytes(svg_string=svg, background="#ffffff", skip_system_fonts=True)
    grey = Image.open(io.BytesIO(bytes(png))).convert("L")
    return 255 - np.asarray(grey)


def standardised(image: np.ndarray) -> np.ndarray:
    """Return the pixels with mean 0 and length 1."""
    pixels = image.astype(float).ravel()
    pixels -= pixels.mean()
    return pixels / np.linalg.norm(pixels)


def distinct(images: list[np.ndarray]) -> Iterator[int]:
    """Yield the indices of images that are neither blank nor copies of earlier ones."""
    kept: list[np.ndarray] = []
    for index, image in enumerate(images):
        if image.std() < 1:
            continue
        pixels = standardised(image)
        if all(pixels @ other < COPY for other in kept):
            kept.append(pixels)
            yield index


def read(package: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the content of each allowed set, and its family."""
    collections = json.loads((package / "collections.json").read_text())
    sets = {}
    families = {}
    for name in allowed(collections):
        sets[name] = json.loads((package / "json" / f"{name}.json").read_text())
        families[name] = family(name, collections[name])
    return sets, families


def main() -> None:
    parser = argparse.ArgumentParser(description="Render the icons of @iconify/json.")
    parser.add_argument("package", type=Path, help="the unpacked npm package")
    parser.add_argument("target", type=Path, help="the file to write (.npz)")
    options = parser.parse_args()
    sets, families = read(options.package)
    names = shared_names(sets)
    columns: dict[str, list[Any]] = {"images": [], "labels": [], "validation": []}
    for label, name in enumerate(tqdm(names, unit="class")):
        members = [key for key, content in sets.items() if name in content["icons"]]
        images = [render(sets[key], name) for key in members]
        for index in distinct(images):
            columns["images"].append(images[index])
            columns["labels"].append(label)
            columns["validation"].append(in_validation(families[members[index]]))
    np.savez_compressed(options.target, **columns)
    (Path(__file__).parent / "icons.txt").write_text("\n".join(names) + "\n")
    print(f"{len(columns['labels'])} icons of {len(names)} names in {len(sets)} sets")


if __name__ == "__main__":
    main()
