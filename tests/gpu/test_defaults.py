"""What a run on this machine's GPU chooses without options."""

import pytest
import torch
from conftest import command
from omegaconf import OmegaConf
from support import small_runs

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


@pytest.mark.process
def test_a_run_chooses_fast_options_prints_and_records_them(tmp_path):
    options = [
        "filter=target_pow",
        "dataset=digits",
        "max_epochs=3",
        "trainer=gpu",
        "hydra.run.dir=run",
    ]
    result = command("rdm_solo.train", *options, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    expected = {
        "trainer.precision": "32-true",
        "trainer.benchmark": True,
        "optimizer.fused": True,
        "backbone.channels_last": True,
        "checkpoint.min_seconds": 60,
    }
    if torch.cuda.get_device_capability() >= (8, 0):
        expected["trainer.precision"] = "bf16-mixed"
    config = OmegaConf.load(tmp_path / "run" / ".hydra" / "config.yaml")
    summary = OmegaConf.create(small_runs.read_summary(tmp_path / "run"))
    for name, value in expected.items():
        assert OmegaConf.select(config, name) == value
        assert OmegaConf.select(summary.config, name) == value
        assert f"{name}={value}".lower() in result.stdout
    saved = small_runs.checkpoint(tmp_path / "run")
    assert all(group["fused"] for group in saved["optimizer_states"][0]["param_groups"])
    assert saved["epoch"] + 1 == 3
    assert small_runs.rows(tmp_path / "run")[-1]["val/knn_acc1"] > 60  # chance: 10
