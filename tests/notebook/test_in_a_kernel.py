"""docs/tour.ipynb and rdm_solo.fit in a real kernel of Jupyter's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT

import rdm_solo

NOTEBOOKS = sorted((ROOT / "docs").glob("*.ipynb"))


@pytest.fixture
def kernel(tmp_path, monkeypatch) -> Any:
    """``kernel.client``: of a kernel in ``tmp_path``, with no settings of this machine's."""
    for module in ("nbclient", "ipykernel"):
        pytest.importorskip(module)
    from jupyter_client.manager import KernelManager

    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path / ".jupyter"))
    manager = KernelManager(kernel_name="python3")
    yield manager
    if manager.has_kernel:
        manager.shutdown_kernel(now=True)
    manager.cleanup_resources()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_is_committed_without_outputs(path):
    notebook = json.loads(path.read_text("utf-8"))
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert code
    for cell in code:
        assert (cell["outputs"], cell["execution_count"]) == ([], None)
    for cell in notebook["cells"]:
        assert cell["metadata"] == {}
    assert set(notebook["metadata"]) == {"kernelspec", "language_info"}


@pytest.mark.process
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_runs_from_top_to_bottom(path, kernel, tmp_path):
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook, km=kernel, timeout=300, resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    shown = {cell.source.splitlines()[-1]: cell.outputs for cell in cells}
    drawn = [line for line in shown if "plot." in line or "draw_" in line]
    assert len(drawn) >= 4
    for line in drawn:  # although nobody has imported pyplot
        assert any("image/png" in output.get("data", {}) for output in shown[line]), line
    printed = "".join(o.text for cell in cells for o in cell.outputs if o.output_type == "stream")
    assert "epoch 2/2: loss" in printed  # of the run, while it trains
    assert "did you mean 'target_pow'" in printed
    assert not any(o.get("name") == "stderr" for cell in cells for o in cell.outputs)
    assert len(rdm_solo.Sweep(tmp_path / "tour").runs) == 2


@pytest.mark.process
@pytest.mark.long
def test_the_stop_button_ends_the_run_in_order(kernel, tmp_path):
    kernel.start_kernel(cwd=str(tmp_path))
    client = kernel.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=60)
        client.execute("import rdm_solo; rdm_solo.fit(max_epochs=1000, folder='run')")
        while True:
            message = client.get_iopub_msg(timeout=120)["content"]
            if message.get("text", "").startswith("epoch 2/"):
                break
            assert "ename" not in message, message
        kernel.interrupt_kernel()
        while "ename" not in message:
            message = client.get_iopub_msg(timeout=120)["content"]
        assert message["ename"] == "KeyboardInterrupt"
    finally:
        client.stop_channels()
    run = rdm_solo.Run(Path(tmp_path) / "run")
    assert run.summary["stopped"] == "Ctrl-C"
    assert run.epochs >= 2
