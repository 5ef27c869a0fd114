"""What is installed."""

import configparser

from conftest import ROOT


def test_every_room_is_installed():
    """setup.cfg lists the packages, because ``find:`` cannot add conf/ to those that it finds."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    listed = config["options"]["packages"].split()
    rooms = sorted(path.parent.name for path in (ROOT / "rdm_solo").glob("*/__init__.py"))
    assert sorted(listed) == sorted(
        ["rdm_solo", "hydra_plugins", "rdm_solo.conf", *(f"rdm_solo.{room}" for room in rooms)]
    )
    assert (ROOT / "rdm_solo" / "py.typed").exists()
