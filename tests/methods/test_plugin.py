"""solo-learn's own entry point with our methods, and our callbacks on its own modules."""

from __future__ import annotations

import csv
import inspect
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import ROOT, command
from PIL import Image
from support.foreign_method import foreign
from support.small_methods import batch

from rdm_solo import callbacks, data, methods
from rdm_solo.data import Pipeline, Views
from rdm_solo.lightning import pl
from rdm_solo.methods import solo_learn
from rdm_solo.runs import spectra_files
from rdm_solo.train.datamodule import DataModule

current = pytest.mark.skipif(
    not solo_learn.CURRENT, reason="1.0.2 has no YAML; its refusal is tested"
)


def docs_yaml() -> str:
    text = (ROOT / "docs" / "plugin.md").read_text()
    return re.search(r"```yaml\n(.*?)```", text, re.DOTALL).group(1)  # type: ignore[union-attr]


@pytest.mark.skipif(solo_learn.CURRENT, reason="the current generation takes them")
def test_the_release_on_the_index_refuses_with_the_reason():
    from rdm_solo import register_methods

    with pytest.raises(ImportError, match="needs its current main"):
        register_methods()


@current
class TestOwnEntryPoint:
    @pytest.mark.process
    @pytest.mark.parametrize(
        ("method", "kwargs"),
        [
            ("rdm_simsiam", ["method_kwargs.filter=target_pow", "method_kwargs.p=-0.5"]),
            ("rdm_byol", ["method_kwargs.filter=online_log1p", "method_kwargs.p=null"]),
            ("symsimsiam", ["~method_kwargs.filter", "~method_kwargs.p"]),
        ],
    )
    def test_it_trains_from_a_yaml_of_its_style(self, method, kwargs, tmp_path):
        rng = np.random.default_rng(0)
        for number in range(16):
            folder = tmp_path / "images" / f"class{number % 2}"
            folder.mkdir(parents=True, exist_ok=True)
            pixels = rng.integers(0, 255, (32, 32, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"{number}.png")
        (tmp_path / "rdm.yaml").write_text(docs_yaml())
        checkout = Path(inspect.getfile(solo_learn.TABLE["base"])).parents[2]
        main = checkout / "main_pretrain.py"
        out = command(
            "rdm_solo.plugin",
            str(main),
            *("--config-path", str(tmp_path), "--config-name", "rdm.yaml", f"method={method}"),
            *kwargs,
            *("method_kwargs.proj_hidden_dim=32", "method_kwargs.proj_output_dim=16"),
            *("data.dataset=custom", f"data.train_path={tmp_path / 'images'}"),
            *(f"data.val_path={tmp_path / 'images'}", "data.num_workers=0"),
            *("optimizer.batch_size=8", "max_epochs=1", "+limit_val_batches=0"),
            *("accelerator=cpu", "devices='1'", "strategy=auto", "precision=32-true"),
            "+momentum.base_tau=0.99",
            cwd=tmp_path,
        )
        assert out.returncode == 0, out.stderr[-2000:]
        saved = next((tmp_path / "trained_models").rglob("*.ckpt"))
        state = torch.load(saved, weights_only=False, map_location="cpu")
        assert state["global_step"] == 2
        assert all(
            x.isfinite().all() for x in state["state_dict"].values() if x.is_floating_point()
        )
        learns = any(name.startswith("predictor") for name in state["state_dict"])
        assert not learns

    def test_its_model_is_ours(self):
        """The same loss as the method that our own config builds, weight for weight."""
        from support.small_methods import configure, loss_of

        from rdm_solo.methods.plugin import RDMSimSiam

        ours = configure("method=simsiam", "filter=target_pow", "p=-0.5")
        theirs = solo_learn.current_config(ours)
        theirs.method_kwargs = {
            "proj_hidden_dim": 512,
            "proj_output_dim": 32,
            "filter": "target_pow",
            "p": -0.5,
        }
        model = methods.build(ours)
        plugged = RDMSimSiam(theirs)
        plugged.load_state_dict(model.state_dict())
        assert torch.equal(loss_of(model, batch()), loss_of(plugged, batch()))

    @pytest.mark.parametrize(
        ("kwargs", "says"),
        [
            ({"filter": "target_pwo"}, "did you mean 'target_pow'"),
            ({"filter": "online_log1p", "p": 2}, "p=2 would be ignored"),
            ({"fitler": "target_pow"}, "method_kwargs.fitler is no option"),
        ],
    )
    def test_refusals(self, kwargs, says):
        from support.small_methods import configure

        from rdm_solo.methods.plugin import RDMSimSiam

        cfg = solo_learn.current_config(configure("method=simsiam"))
        cfg.method_kwargs = {"proj_hidden_dim": 16, "proj_output_dim": 8, **kwargs}
        with pytest.raises(ValueError, match=says):
            RDMSimSiam(cfg)


def test_a_script_that_is_absent_is_named(tmp_path):
    out = command("rdm_solo.plugin", "nowhere.py", cwd=tmp_path)
    assert out.returncode == 2
    assert "nowhere.py is no file" in out.stderr


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["simsiam", "byol", "swav", "dino"])
def test_diagnostics_attach_to_a_module_that_is_not_ours(name, tmp_path):
    """A real Trainer, solo-learn's class, our two callbacks: spectra for every epoch.

    1.0.2's classes run under today's Lightning only with the host's adapter.
    """
    model = foreign(name, lambda cfg: solo_learn.adapted(name)(cfg))
    dataset = data.synthetic(num_train=32, num_val=16, size=16)
    module = DataModule(dataset, Views([Pipeline(size=16, num_crops=2)]), batch_size=8)
    trainer = pl.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        num_sanity_val_steps=0,
        limit_val_batches=0,
        use_distributed_sampler=False,
        callbacks=[callbacks.Diagnostics(tmp_path), callbacks.EpochTable(tmp_path)],
    )
    trainer.fit(model, datamodule=module)
    with open(tmp_path / "metrics.csv", newline="") as file:
        (row,) = csv.DictReader(file)
    assert float(row["erank/online"]) >= 1
    assert abs(float(row["erank/gap"])) > 1e-6
    spectra = spectra_files.read(tmp_path)[0]
    assert spectra["lam_online"].shape == (1, 24 if name in ("swav", "dino") else 16)
