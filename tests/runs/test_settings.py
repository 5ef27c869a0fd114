"""What belongs to a setting, for every place that compares runs."""

import functools

import pytest

from rdm_solo.runs.settings import MODEL, SETTING, differences
from rdm_solo.train import compose


@functools.cache
def configure(*overrides: str):
    return compose(["filter=target_pow", *overrides])


@pytest.mark.parametrize(
    "override",
    [
        "p=-1",
        "optimizer.lr=3",
        "method.kwargs.proj_output_dim=64",
        "batch_size=17",
        "max_epochs=7",
        "trainer.precision=bf16-mixed",
        "dataset.image_size=48",
        "dataset.views.pipelines.0.blur=0.25",
    ],
)
def test_an_option_of_the_setting_is_named(override):
    name, _, _ = override.partition("=")
    assert name in differences(configure(), configure(override))


@pytest.mark.parametrize(
    "override",
    [
        "seed=5",
        "trainer.enable_progress_bar=false",
        "diagnostics.every_n_epochs=2",
        "backbone.compile=default",
        "backbone.channels_last=false",
        "watch.stop=true",
        "++trainer.limit_val_batches=2",
    ],
)
def test_seed_machine_and_measurement_are_none_of_the_setting(override):
    assert differences(configure(), configure(override), SETTING) == []


def test_data_may_have_moved():
    """Where the files lie is no part of the experiment; their size is."""
    cfg = configure("dataset=cifar10", "dataset.root=/here")
    moved = configure("dataset=cifar10", "dataset.root=/there", "dataset.download=true")
    other = configure("dataset=cifar10", "dataset.root=/here", "dataset.image_size=28")
    assert differences(cfg, moved, MODEL) == []
    assert "dataset.image_size" in differences(cfg, other, MODEL)
