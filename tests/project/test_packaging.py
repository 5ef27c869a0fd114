"""setup.cfg lists every room, requirements-offline.txt what a machine without internet lacks."""

import configparser
from importlib import metadata

from conftest import ROOMS, ROOT
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def test_every_room_is_installed():
    """setup.cfg lists the packages, because ``find:`` cannot add conf/ to those that it finds."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    listed = config["options"]["packages"].split()
    expected = ["rdm_solo", "hydra_plugins", "rdm_solo.conf"]
    expected += [f"rdm_solo.{room}" for room in ROOMS]
    assert sorted(listed) == sorted(expected)
    assert (ROOT / "rdm_solo" / "py.typed").exists()


def closure(*names: str) -> set[str]:
    """Return the names of these packages and of all that they require on this machine."""
    found = set()
    pending = [Requirement(name) for name in names]
    while pending:
        wanted = pending.pop()
        name = canonicalize_name(wanted.name)
        if name in found:
            continue
        found.add(name)
        for text in metadata.requires(name) or []:
            required = Requirement(text)
            extras = wanted.extras or {""}
            marker = required.marker
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in extras):
                pending.append(required)
    return found


def test_a_machine_without_internet_gets_all_packages():
    """requirements-offline.txt is installed beside torch and Lightning, without dependencies."""
    lines = (ROOT / "requirements-offline.txt").read_text().splitlines()
    listed = {canonicalize_name(Requirement(x).name) for x in lines if not x.startswith("#")}
    installed = closure("torch", "torchvision", "lightning", "pytest")
    downloads = closure("huggingface_hub")  # timm needs it for pretrained weights only
    missing = closure("rdm-solo[train]") - installed - downloads - listed
    assert missing == {"rdm-solo"}
    assert "solo-learn" in listed
