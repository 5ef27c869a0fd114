"""docs/tour.ipynb in a real kernel of Jupyter's."""

import json
from pathlib import Path

import pytest
from conftest import ROOT

import rdm_solo

TOUR = Path(ROOT, "docs", "tour.ipynb")
# Options that make its runs short.
QUICK = """
"dataset": "synthetic", "dataset.num_train": 64, "dataset.num_val": 32, "dataset.image_size": 8,
"batch_size": 32, "threads": 1,
"backbone.name": "small_resnet", "backbone.kwargs.zero_init_residual": None,
"method.kwargs.proj_hidden_dim": 32, "method.kwargs.proj_output_dim": 16,
"method.kwargs.pred_hidden_dim": 8,
"""


def test_the_tour_is_committed_without_outputs():
    notebook = json.loads(TOUR.read_text("utf-8"))
    assert set(notebook["metadata"]) == {"kernelspec", "language_info"}
    for cell in notebook["cells"]:
        assert cell["metadata"] == {}
        assert (cell.get("outputs", []), cell.get("execution_count")) == ([], None)


@pytest.mark.long
def test_the_tour_runs(tmp_path, monkeypatch):
    for module in ("nbclient", "ipykernel", "pandas"):
        pytest.importorskip(module)
    import nbformat
    from nbclient import NotebookClient

    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PYDEVD_DISABLE_FILE_VALIDATION", "1")  # the kernel's debugger warns
    for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path / ".jupyter"))
    text = TOUR.read_text("utf-8")
    options = '\\"max_epochs\\": 2'
    assert text.count(options) == 1
    text = text.replace(options, json.dumps(QUICK)[1:-1] + options)
    notebook = nbformat.reads(text, as_version=4)
    resources = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=300, resources=resources).execute()
    pictures = 0
    printed = {"stdout": "", "stderr": ""}
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            pictures += "image/png" in output.get("data", {})
            if output.output_type == "stream":
                printed[output.name] += output.text
    assert pictures == 4  # draw_filter, effective_rank, spectra and sweep, without pyplot
    assert "epoch 2/2: loss" in printed["stdout"]
    assert "did you mean 'target_pow'" in printed["stdout"]
    for line in printed["stderr"].splitlines():
        assert "font cache" in line  # matplotlib's
    assert len(rdm_solo.Sweep(tmp_path / "tour").runs) == 2
