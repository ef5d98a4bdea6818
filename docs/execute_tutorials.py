"""Execute the tutorials in place: ``python docs/execute_tutorials.py [NOTEBOOK…]``, as
``make tutorials`` does.

Each runs in an empty folder, so that it depends on nothing in the repository. Times, versions and
other details of the machine are removed from the file.
"""

import base64
import io
import os
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from PIL import Image

TUTORIALS = Path(__file__).parent / "tutorials"
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
MAX_BYTES = 60_000
"""Limit of a figure, so that the repository stays small."""


def compressed(figure: str) -> str:
    """Return a PNG in base64 with 128 colours, which is a quarter of the size."""
    with Image.open(io.BytesIO(base64.b64decode(figure))) as image, io.BytesIO() as file:
        image.convert("RGB").quantize(128).save(file, "PNG", optimize=True)
        return base64.b64encode(file.getvalue()).decode()


def execute(path: Path) -> None:
    """Execute a notebook and write it with its outputs.

    Raises:
        CellExecutionError: a cell fails; the file stays as it was.
        ValueError: a cell prints to standard error, or draws a figure that is too large.
    """
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        resources = {"metadata": {"path": folder}}
        NotebookClient(
            notebook, timeout=1200, record_timing=False, coalesce_streams=True, resources=resources
        ).execute()
    notebook.metadata = nbformat.from_dict(METADATA)
    for cell in notebook.cells:
        cell.metadata = nbformat.from_dict(
            {"tags": tags} if (tags := cell.metadata.get("tags")) else {}
        )
        for output in cell.get("outputs", []):
            if output.get("name") == "stderr":
                raise ValueError(f"{path.name}: a cell prints to standard error:\n{output['text']}")
            if "data" in output:
                output.metadata = nbformat.from_dict({})
                if "image/png" in output.data:
                    output.data["image/png"] = figure = compressed(output.data["image/png"])
                    if len(figure) * 3 / 4 > MAX_BYTES:
                        raise ValueError(
                            f"{path.name}: a figure has more than {MAX_BYTES:,} "
                            f"bytes:\n{cell.source}"
                        )
    nbformat.write(notebook, path)


if __name__ == "__main__":
    os.environ["PYTHONWARNINGS"] = (
        "ignore:IProgress not found"  # Pyro imports tqdm, which looks for ipywidgets
    )
    for notebook in map(Path, sys.argv[1:] or sorted(TUTORIALS.glob("*.ipynb"))):
        print(notebook.name, flush=True)
        execute(notebook)
