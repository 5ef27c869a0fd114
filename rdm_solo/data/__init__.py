"""Images, data sets, views and loaders."""

from rdm_solo.data.draws import generator
from rdm_solo.data.folders import folder, imagenet, imagenet100, imagenet100_classes
from rdm_solo.data.images import DataError, Dataset, Files, Images, Reading
from rdm_solo.data.loaders import Loader, loader
from rdm_solo.data.sources import cifar10, cifar100, digits, synthetic
from rdm_solo.data.tar_files import Shards, shards
from rdm_solo.data.views import Pipeline, Views

__all__ = [
    "DataError",
    "Dataset",
    "Files",
    "Images",
    "Loader",
    "Pipeline",
    "Reading",
    "Shards",
    "Views",
    "cifar10",
    "cifar100",
    "digits",
    "folder",
    "generator",
    "imagenet",
    "imagenet100",
    "imagenet100_classes",
    "loader",
    "shards",
    "synthetic",
]
