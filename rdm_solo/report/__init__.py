"""Write one page with figures and tables of runs: ``rdm-solo report FOLDER...``."""

from rdm_solo.report.entry import write

__all__ = ["write"]
