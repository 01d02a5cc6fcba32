"""The notebook runs from the first cell to the last, in a kernel of its own."""

import os
import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "examples" / "own_images.ipynb"


def test_it_is_stored_without_results_and_links_to_pages() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    assert not [
        cell for cell in notebook.cells if cell.get("outputs") or cell.get("execution_count")
    ]
    text = "".join(cell.source for cell in notebook.cells)
    pages = re.findall(r"\]\(\.\./(docs/[a-z-]+\.md)\)", text)
    assert pages and all((ROOT / page).is_file() for page in pages)


@pytest.mark.nightly
def test_every_cell_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The kernel imports this checkout, and leaves its connection file with the test's.
    paths = (str(ROOT / "src"), os.environ.get("PYTHONPATH", ""))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in paths if path))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    resources = {"metadata": {"path": str(tmp_path)}}
    client = NotebookClient(notebook, timeout=900, kernel_name="python3", resources=resources)
    client.execute()
    said = "".join(
        output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", [])
    )
    assert "'num_boxes': " in said and "NaN instead: 0" in said
