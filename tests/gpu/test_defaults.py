"""What a run on this machine's GPU chooses without options."""

import pytest
import torch
from omegaconf import OmegaConf
from support import small_runs

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def test_a_run_chooses_fast_options_logs_and_records_them(tmp_path, caplog):
    caplog.set_level("INFO", logger="rdm_solo")
    folder = tmp_path / "run"
    options = ["filter=target_pow", "dataset=digits", "max_epochs=3", "trainer=gpu"]
    summary = OmegaConf.create(small_runs.run(folder, *options))
    expected = {
        "trainer.precision": "32-true",
        "trainer.benchmark": True,
        "optimizer.fused": True,
        "backbone.channels_last": True,
        "checkpoint.min_seconds": 60,
    }
    if torch.cuda.get_device_capability() >= (8, 0):
        expected["trainer.precision"] = "bf16-mixed"
    config = OmegaConf.load(folder / ".hydra" / "config.yaml")
    for name, value in expected.items():
        assert OmegaConf.select(config, name) == value
        assert OmegaConf.select(summary.config, name) == value
        assert f"{name}={value}".lower() in caplog.text
    saved = small_runs.checkpoint(folder)
    assert all(group["fused"] for group in saved["optimizer_states"][0]["param_groups"])
    assert saved["epoch"] + 1 == 3
    assert small_runs.learned(folder)
