"""Write one page with figures and tables of runs: ``python -m rdm_solo.report FOLDER...``."""

from rdm_solo.report.entry import write

__all__ = ["write"]
