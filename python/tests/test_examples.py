# SPDX-License-Identifier: Apache-2.0
"""Programs of examples/, on a small slice."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def check_results(folder: Path, printed: str, run, demo: str) -> None:
    """The figures of docs/tutorial.md, and the text that the program writes with the same seed."""
    assert printed.count("perplexity") == 19 and "the worst" in printed
    for figure in (folder / "ablation.jsonl.svg", folder / "front.jsonl.svg", *(folder / "profile").glob("*.svg")):
        assert figure.read_text().rstrip().endswith("</svg>"), figure
    assert len(list((folder / "profile").glob("*.svg"))) == 4
    options = ["--precision", "fp32", "--prompt", "Once upon a time", "--max-tokens", "400", "--ignore-eos", "--temperature", "1"]
    text = run("generate", "--model", demo, "--device", "cpu", *options, "--seed", "1", "--quiet")
    assert (folder / "calibration.txt").read_text() == text


def test_notebook_is_the_script() -> None:
    jupytext = pytest.importorskip("jupytext")
    script, notebook = (jupytext.read(ROOT / f"examples/tutorial.{suffix}") for suffix in ("py", "ipynb"))
    assert [(cell.cell_type, cell.source) for cell in notebook.cells] == [(cell.cell_type, cell.source) for cell in script.cells]
    assert not any(cell.get("outputs") for cell in notebook.cells)


def test_tutorial(tmp_path: Path, run, demo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The notebook where it can be run, with what its cells show; else the script."""
    monkeypatch.setenv("TUTORIAL_FOLDER", str(tmp_path))
    monkeypatch.setenv("TUTORIAL_WINDOWS", "1")
    try:
        import ipykernel  # noqa: F401
        import nbclient
        import nbformat
    except ImportError:
        done = subprocess.run([sys.executable, str(ROOT / "examples/tutorial.py")], cwd=ROOT, env=os.environ, timeout=600,
                              capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        check_results(tmp_path, done.stdout, run, demo)
        return
    notebook = nbformat.read(ROOT / "examples/tutorial.ipynb", as_version=4)
    # From its own folder, as Jupyter opens it.
    nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(ROOT / "examples")}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    check_results(tmp_path, "".join(output["text"] for output in outputs if output["output_type"] == "stream"), run, demo)
    shown = [output["data"]["text/html"] for output in outputs if "text/html" in output.get("data", {})]
    assert sum("<svg" in text for text in shown) == 3 and sum("<table" in text for text in shown) == 5
