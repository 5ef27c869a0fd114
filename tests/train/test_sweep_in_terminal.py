"""A sweep and a run of two processes on the screen: bars, lines, one table."""

from __future__ import annotations

import json
import math
import re

import pytest
from conftest import command
from omegaconf import OmegaConf
from support.small_runs import DRAWN, QUICK, SMALL, rows, run
from support.terminal import in_a_terminal

from rdm_solo.runs import failures, spectra_files
from rdm_solo.train import sweep


@pytest.mark.process
class TestCommand:
    @pytest.mark.long
    def test_a_sweep_in_a_terminal(self, tmp_path):
        """A line that moves, one table at the end; a run that fails is named, the others kept."""
        options = [option for option in QUICK if "progress_bar" not in option]
        options += [*DRAWN, "filter=target_pow", "p=null,-0.5", "seed=0,1"]
        seen, status = in_a_terminal(["rdm_solo.train", "-m", *options], tmp_path)
        assert status == 1, seen[-3000:]
        drawn = [line.rstrip() for line in re.findall(r"\r(epoch \d/[^\r\n]*)", seen)]
        assert any(line.startswith("epoch 1/2 [............]") for line in drawn)
        assert max(map(len, drawn)) <= 80
        values = r"epoch 2/2 \[#+\.*\]  loss -?\d\.\d{3}  erank \d+\.\d < \d+\.\d  kNN \d+\.\d"
        assert any(re.match(values, line) for line in drawn)
        assert "train_" not in seen
        assert "Warning" not in seen
        after = seen.rpartition("all pictures on one page")[2]
        (row,) = [line for line in after.splitlines() if line.startswith("SimSiam, h(σ) = σ^-0.5")]
        assert row.split()[4] == "2"  # seeds
        assert len(re.findall(r"\d ± \d", row)) == 6
        (failed,) = [line for line in after.splitlines() if line.startswith("failed: ")]
        names, _, reason = failed.removeprefix("failed: ").partition(": ")
        assert [name[0] for name in names.split(", ")] == ["0", "1"]
        assert "filter=target_pow needs an exponent" in reason
        assert "python -m rdm_solo.report runs/" in after
        summaries = sorted(tmp_path.glob("runs/*_sweep/*/summary.json"))
        assert [json.loads(s.read_text())["config"]["p"] for s in summaries] == [-0.5, -0.5]
        assert all((s.parent / ".hydra" / "config.yaml").exists() for s in summaries)
        assert [path.name for path in tmp_path.iterdir()] == ["runs"]

    @pytest.mark.long  # three commands of two processes each
    def test_runs_of_two_processes_in_a_log_end_together(self, tmp_path):
        """No terminal: a line an epoch, from one process; nothing that anybody else has to say. The
        first run diverges on both processes, the second is stopped by its watch and does not take
        itself for a process of the first; it goes on by ``resume=`` alone. Lightning starts the
        second process by the name of the module that runs, which is not rdm_solo.train here.

        That gradients equal one process's is in test_distributed; batch norm, which sees a
        process's rows alone on a CPU, keeps whole runs from being compared.
        """
        options = [option for option in QUICK if "progress_bar" not in option]
        options += [*DRAWN, "filter=target_pow", "p=0.5", "max_epochs=3"]
        options += ["trainer=ddp", "trainer.devices=2", "trainer.accelerator=cpu", "batch_size=8"]
        options += ["watch.gap_epochs=1", "watch.stop=true"]
        options += ["optimizer.name=adam", "optimizer.lr=1e30,0.001"]
        out = command("rdm_solo", "train", "-m", *options, cwd=tmp_path, PYTHONWARNINGS="")
        assert out.returncode == 1, (out.stdout + out.stderr)[-3000:]
        assert out.stdout.count("failed: 0_simsiam_target_pow_p=0.5: ") == 1
        assert out.stdout.count("global batch 16 = 8 x 2 process(es)") == 2
        first, path = sorted(tmp_path.rglob("summary.json"))
        assert json.loads(first.read_text())["diverged"]["epoch"] == 1
        assert not (first.parent / "checkpoints").exists()
        found = json.loads(path.read_text())
        assert found["diverged"] is None
        assert found["processes"] == 2
        assert found["stopped"] == "watch.stop: negative gap in epoch 1"
        assert found["derived"]["global_batch"] == 16
        assert spectra_files.read(path.parent)[0]["rows"][0] == 128
        assert found["last"].pop("erank/logits") is None  # no softmax
        assert all(math.isfinite(value) for value in found["last"].values())
        (line,) = [line for line in out.stdout.splitlines() if line.startswith("epoch 1/3: ")]
        values = r"loss -?\d\.\d+, erank online \d+\.\d target \d+\.\d gap -\d+\.\d, kNN \d+\.\d, "
        assert re.fullmatch(rf"epoch 1/3: {values}acc \d+\.\d, \d+\.\d s", line)
        assert "\r" not in out.stdout + out.stderr
        said = r"error: training diverged in epoch 1, step 3: all \d+ rows [^\n]*\n"
        assert re.fullmatch(said, out.stderr)
        assert "Initializing distributed" not in out.stdout

        # Its second process reads the folder, too, which the first one owns and has begun to write.
        more = [f"resume={path.parent}", "max_epochs=2", "watch.stop=false"]
        out = command("rdm_solo.train", *more, cwd=tmp_path, PYTHONWARNINGS="")
        assert (out.returncode, out.stderr) == (0, ""), out.stdout[-3000:]
        assert out.stdout.count("going on in ") == 1
        assert [row["epoch"] for row in rows(path.parent)] == [1, 2]


class TestSweep:
    def test_seeds_share_a_row_and_settings_do_not(self, tmp_path, capsys):
        common = [*SMALL, "filter=target_pow", "max_epochs=1", "scheduler.warmup_epochs=0"]
        for number, more in enumerate((["seed=0"], ["seed=1"], ["optimizer.lr=0.1"])):
            run(tmp_path / f"{number}_x", *common, *more)
        failed = tmp_path / "3_x"
        failed.mkdir()
        failures.note(failed, failures.reason(RuntimeError("no room\nleft")))
        summary = tmp_path / "2_x" / "summary.json"
        told = json.loads(summary.read_text())
        told["warnings"] = [{"kind": "complete collapse", "epoch": 1, "text": "..."}]
        summary.write_text(json.dumps(told))
        capsys.readouterr()
        config = OmegaConf.create({"hydra": {"sweep": {"dir": str(tmp_path)}}})
        with pytest.raises(SystemExit) as left:
            sweep.SweepTable().on_multirun_end(config)
        assert left.value.code == 1
        _, head, first, second, fails, *_ = capsys.readouterr().out.splitlines()
        assert head.split()[:6] == ["setting", "n", "kNN", "online", "target", "gap"]
        assert head.split()[6:] == ["variance", "seconds"]
        accuracies = [
            json.loads((tmp_path / f"{n}_x" / "summary.json").read_text())["last"]["val/knn_acc1"]
            for n in (0, 1)
        ]
        mean, deviation = sum(accuracies) / 2, abs(accuracies[0] - accuracies[1]) / math.sqrt(2)
        assert "(lr=0.5)" in first
        assert f" 2  {mean:.2f} ± {deviation:.2f} " in first
        assert "±" not in second
        assert second.endswith("! complete collapse")
        assert fails == "failed: 3_x: RuntimeError: no room"
