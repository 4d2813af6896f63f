"""The notebooks of the examples run from their first cell to their last."""

import re
from pathlib import Path

import nbclient
import nbformat
import pytest
from support.session.tiers import by_day

EXAMPLES = Path(__file__).parents[2] / "examples"
# The least AUC on rows that were not seen.
LEAST_AUC = {"criteo": 0.6, "shop": 0.7, "news": 0.7}


def texts(notebook):
    outputs = [o for cell in notebook.cells for o in cell.get("outputs", [])]
    return "".join(o.text for o in outputs if o.output_type == "stream" and o.name == "stdout")


def figures(text):
    return [float(found) for found in re.findall(r"AUC (0\.\d{4})", text)]


@pytest.mark.parametrize("name", by_day(LEAST_AUC, (), nightly=LEAST_AUC))
def test_a_notebook(name, monkeypatch):
    # Given a notebook, with the outputs that were stored
    monkeypatch.setenv("PYTHONPATH", str(EXAMPLES.parent))
    notebook = nbformat.read(EXAMPLES / "notebooks" / f"{name}.ipynb", 4)
    nbformat.validate(notebook)
    stored = texts(notebook)

    # When a kernel runs it
    folder = {"metadata": {"path": str(EXAMPLES / "notebooks")}}
    nbclient.NotebookClient(notebook, timeout=300, resources=folder).execute()

    # Then it predicts better than by chance, as it says, draws its picture and asks the model
    assert min(figures(texts(notebook))) > LEAST_AUC[name]
    assert figures(stored) == pytest.approx(figures(texts(notebook)), abs=0.03)
    kinds = [o.output_type for cell in notebook.cells for o in cell.get("outputs", [])]
    assert "display_data" in kinds
    assert re.search(r"'(probability|cart)': array\(\[0\.", texts(notebook))
