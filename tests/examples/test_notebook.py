"""The notebook runs from the first cell to the last, in a kernel of its own."""

import os
import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "examples" / "own_images.ipynb"


def test_it_has_its_results_and_links_to_pages() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == [*range(1, len(code) + 1)]
    outputs = [output for cell in code for output in cell.outputs]
    assert {output.output_type for output in outputs} == {"stream", "display_data"}
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 2
    assert NOTEBOOK.stat().st_size < 256 * 1024
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
    assert counts(notebook) == counts(nbformat.read(NOTEBOOK, as_version=4)) != []


def counts(notebook: nbformat.NotebookNode) -> list[str]:
    """Returns the last lines of the jobs, which no machine changes, without their folders."""
    texts = [
        output.text
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if output.get("name") == "stdout"
    ]
    return re.findall(r"^done: .*(?=: \S+$)|\d+ rows of regions, .*$", "".join(texts), re.M)
