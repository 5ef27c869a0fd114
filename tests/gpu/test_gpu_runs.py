"""Runs on a GPU: defaults, resumption, a head of 65,536 outputs, and nccl's collectives."""

import math

import pytest
import torch
import torch.distributed as dist
from omegaconf import OmegaConf
from support.small_runs import SMALL, checkpoint, learned, rows, run, run_until, same
from torchmetrics.utilities.distributed import gather_all_tensors

from benchmarks.cost import Step
from benchmarks.gpu.steps import SMALL as SMALL_STEP
from rdm_solo.observe.parts import observer
from rdm_solo.observe.recorder import Limits, Recorder

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

DEVICE = "cuda"
ACCELERATOR = "gpu"
RUN = [
    *SMALL,
    f"trainer.accelerator={ACCELERATOR}",
    "filter=target_pow",
    "checkpoint.every_n_epochs=1",
    "max_epochs=3",
]


def test_a_run_chooses_fast_options_logs_and_records_them(tmp_path, caplog):
    caplog.set_level("INFO", logger="rdm_solo")
    folder = tmp_path / "run"
    options = ["filter=target_pow", "dataset=digits", "max_epochs=3", "trainer=gpu"]
    summary = OmegaConf.create(run(folder, *options))
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
    saved = checkpoint(folder)
    assert all(group["fused"] for group in saved["optimizer_states"][0]["param_groups"])
    assert saved["epoch"] + 1 == 3
    assert learned(folder)


def test_a_deterministic_run_resumes_bit_for_bit(tmp_path):
    options = [*RUN, "++trainer.deterministic=true"]
    expected = tmp_path / "uninterrupted"
    run(expected, *options)
    resumed = tmp_path / "resumed"
    run_until(2, resumed, *options)
    assert len(rows(resumed)) == 1
    run(resumed, *options)
    assert rows(resumed) == rows(expected)
    for name in ("state_dict", "optimizer_states"):
        assert same(checkpoint(resumed)[name], checkpoint(expected)[name])


def test_a_compiled_run_resumes(tmp_path):
    """The weights have the default layout, channels-last, and the names of a run as it is."""
    plain = tmp_path / "plain"
    run(plain, *RUN)
    compiled = tmp_path / "compiled"
    options = [*RUN, "backbone.compile=true"]
    run_until(2, compiled, *options)
    run(compiled, *options)
    table = rows(compiled)
    assert len(table) == 3
    assert all(math.isfinite(row["train/loss"]) for row in table)
    weights = checkpoint(compiled)["state_dict"]
    assert weights.keys() == checkpoint(plain)["state_dict"].keys()
    # Four steps differ by rounding only, in bfloat16 where the card has it.
    loss = rows(plain)[0]["train/loss"]
    assert table[0]["train/loss"] == pytest.approx(loss, abs=0.05)


def test_spectra_of_a_dino_head_with_65536_outputs():
    options = [*SMALL_STEP, "method.kwargs.num_prototypes=65536"]
    step = Step(DEVICE, "method=dino", *options)
    recorder = Recorder(observer(step.model), Limits(), views=2, keep_latest=True)
    for epoch in range(1, 4):
        recorder.before_step(0, 1)
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            loss = step()
        recorder.after_step()
        row = recorder.end_epoch(epoch, float(loss))
        recorder.begin_epoch()
    assert recorder.latest.online.shape == (16, 65536)
    for name in ("online", "target"):
        outputs = getattr(recorder.latest, name).cpu().double()
        lam = torch.linalg.svdvals(outputs).square()
        erank = torch.special.entr(lam / lam.sum()).sum().exp()
        assert row.scalars[f"erank/{name}"] == pytest.approx(float(erank), rel=1e-5)


def test_nccl_runs_the_collectives(tmp_path):
    """These are the calls in ground/distributed.py, which returns early on one process."""
    dist.init_process_group("nccl", f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.int64):
            x = torch.arange(12, device=DEVICE).view(3, 4).to(dtype)
            total = x.clone()
            dist.all_reduce(total)
            assert torch.equal(total, x)
            columns = torch.empty_like(x.mT.contiguous())
            dist.all_gather_into_tensor(columns, x.mT.contiguous())
            assert torch.equal(columns, x.mT)
            (part,) = gather_all_tensors(x)
            assert torch.equal(part, x)
        objects = [None]
        dist.all_gather_object(objects, {"epoch": 1})
        assert objects == [{"epoch": 1}]
        dist.broadcast_object_list(objects)
        assert objects == [{"epoch": 1}]
        dist.barrier()
    finally:
        dist.destroy_process_group()
