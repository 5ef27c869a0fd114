"""Images, data sets, views and loaders."""

from rdm_solo.data.draws import DRAWS, generator, random_rows
from rdm_solo.data.file_loader import FileLoader
from rdm_solo.data.folders import folder, imagenet, imagenet100, imagenet100_classes
from rdm_solo.data.images import DataError, Dataset, Files, Images, Reading, check_switch
from rdm_solo.data.memory_loader import EpochLoader
from rdm_solo.data.sources import cifar10, cifar100, digits, synthetic
from rdm_solo.data.views import Parameters, Pipeline, Views

__all__ = [
    "DRAWS",
    "DataError",
    "Dataset",
    "EpochLoader",
    "FileLoader",
    "Files",
    "Images",
    "Parameters",
    "Pipeline",
    "Reading",
    "Views",
    "check_switch",
    "cifar10",
    "cifar100",
    "digits",
    "folder",
    "generator",
    "imagenet",
    "imagenet100",
    "imagenet100_classes",
    "random_rows",
    "synthetic",
]
