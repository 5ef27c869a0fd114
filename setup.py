"""Maps the top-level conf/ into the installed package; all other metadata is in pyproject.toml."""

from setuptools import find_packages, setup

setup(
    packages=[
        *find_packages(include=["rdm_solo", "rdm_solo.*"]),
        "hydra_plugins",  # a namespace, which other packages share
        "rdm_solo.conf",
    ],
    package_dir={"rdm_solo.conf": "conf"},
    package_data={"": ["*.csv", "*.txt", "templates/*"], "rdm_solo.conf": ["**/*.yaml"]},
)
