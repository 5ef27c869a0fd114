"""setup.cfg installs every room of the package."""

import configparser

from conftest import ROOMS, ROOT


def test_every_room_is_installed():
    """setup.cfg lists the packages, because ``find:`` cannot add conf/ to those that it finds."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    listed = config["options"]["packages"].split()
    expected = ["rdm_solo", "hydra_plugins", "rdm_solo.conf"]
    expected += [f"rdm_solo.{room}" for room in ROOMS]
    assert sorted(listed) == sorted(expected)
    assert (ROOT / "rdm_solo" / "py.typed").exists()
