"""docs/tour.ipynb in a real kernel of Jupyter's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import ROOT

import rdm_solo

TOUR = Path(ROOT, "docs", "tour.ipynb")


def test_the_tour_is_committed_without_outputs():
    notebook = json.loads(TOUR.read_text("utf-8"))
    assert set(notebook["metadata"]) == {"kernelspec", "language_info"}
    for cell in notebook["cells"]:
        assert cell["metadata"] == {}
        assert (cell.get("outputs", []), cell.get("execution_count")) == ([], None)


@pytest.mark.process
def test_the_tour_runs(tmp_path, monkeypatch):
    for module in ("nbclient", "ipykernel", "pandas"):
        pytest.importorskip(module)
    import nbformat
    from nbclient import NotebookClient

    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path / ".jupyter"))
    notebook = nbformat.read(TOUR, as_version=4)
    resources = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=300, resources=resources).execute()
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    figures = [c for c in cells if c.source.splitlines()[-1].startswith(("draw_", "run.plot"))]
    assert len(figures) >= 3
    for cell in figures:  # although pyplot was never imported
        assert any("image/png" in output.get("data", {}) for output in cell.outputs), cell.source
    streams = [o for cell in cells for o in cell.outputs if o.output_type == "stream"]
    printed = "".join(output.text for output in streams)
    assert "epoch 2/2: loss" in printed
    assert "did you mean 'target_pow'" in printed
    # The kernel and its debugger write there, too.
    errors = [output.text for output in streams if output.name == "stderr"]
    assert not [text for text in errors if "rdm_solo" in text or "lightning" in text]
    assert len(rdm_solo.Sweep(tmp_path / "tour").runs) == 2
