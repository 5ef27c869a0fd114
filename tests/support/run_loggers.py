"""A logger that keeps what a run gives it."""

import numpy as np

from rdm_solo.loggers.run_logger import RunLogger


class Recorder(RunLogger):
    takes_files = True

    def __init__(self) -> None:
        self.alerts: list[tuple] = []
        self.files: list = []
        self.pictures: list[int] = []  # steps
        self.logarithms: list[float] = []  # of the first eigenvalue

    @classmethod
    def open(cls, run, previous):
        return cls()

    def log_metrics(self, metrics, step=None):
        pass

    def alert(self, kind, text, is_note, step):
        self.alerts.append((kind, is_note, step))

    def file(self, path):
        self.files.append(path)

    def picture(self, image, step):
        assert (image.dtype, image.ndim) == (np.uint8, 3)
        self.pictures.append(step)

    def histograms(self, values, step):
        self.logarithms.append(values["spectra/log10_online"][0])
