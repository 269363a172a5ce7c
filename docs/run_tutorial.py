# SPDX-License-Identifier: Apache-2.0
"""Runs the tutorial, and stores what it prints for viewers that do not run it.

    pip install '.[docs]' && python docs/run_tutorial.py

What processes log is left out.
"""

import pathlib
import tempfile

import nbclient
import nbformat

_PATH = pathlib.Path(__file__).with_name("tutorial.ipynb")
_TIMEOUT_SECONDS = 600
_LOG = "INFO:tensorflow:"


def main() -> None:
    """Replaces the outputs in the notebook."""
    notebook = nbformat.read(_PATH, nbformat.NO_CONVERT)
    with tempfile.TemporaryDirectory() as folder:
        nbclient.NotebookClient(
            notebook,
            timeout=_TIMEOUT_SECONDS,
            resources={"metadata": {"path": folder}},
        ).execute()
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [one for one in cell.outputs if not _is_log(one)]
            # The times of a run.
            cell.metadata.pop("execution", None)
    nbformat.write(notebook, _PATH)


def _is_log(output: nbformat.NotebookNode) -> bool:
    return output.output_type == "stream" and (
        output.name == "stderr" or output.text.startswith(_LOG)
    )


if __name__ == "__main__":
    main()
