"""Run the pages that have outputs as notebooks, and write under each cell what it prints and draws.

    python docs/site/outputs.py [NAME ...]

Needs nbclient, ipykernel and scikit-learn beside tf_adasum with [examples,notebook]. What stands
between `<!-- output -->` and `<!-- end -->` on a page is renewed, and plots in docs/images/.
"""

import base64
import re
import sys
import tempfile
from pathlib import Path

import nbclient
import nbformat

DOCS = Path(__file__).resolve().parents[1]
OUTPUT = re.compile(r"<!-- output -->\n.*?<!-- end -->\n", re.DOTALL)
CELL = re.compile(r"^```python\n(.*?)^```\n", re.DOTALL | re.MULTILINE)
LEFT_OUT = re.compile(r"^INFO:tensorflow:.*\n", re.MULTILINE)  # TensorFlow's own logger


def executed(text, folder, more=()):
    """Return the cells of a page after they have run in order.

    Args:
        text: of the page.
        folder: an empty folder to run in.
        more: code of further cells.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell raises.
    """
    notebook = nbformat.v4.new_notebook()
    cells = [*CELL.findall(text), *more]
    notebook.cells = [nbformat.v4.new_code_cell(code) for code in cells]
    client = nbclient.NotebookClient(
        notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    )
    client.execute()
    return notebook.cells


def shown(cell, name):
    """Return what a page shows under a cell."""
    printed, pictures = "", []
    for output in cell.outputs:
        if output.output_type == "stream" and output.name == "stdout":
            printed += output.text
        if image := output.get("data", {}).get("image/png"):
            file = DOCS / "images" / f"tutorial-{name}.png"
            file.write_bytes(base64.b64decode(image))
            pictures.append(f"![What the code above draws](images/{file.name})\n")
    printed = LEFT_OUT.sub("", printed).strip()
    blocks = [f"```text\n{printed}\n```\n"] if printed else []
    return "<!-- output -->\n" + "\n".join(blocks + pictures) + "<!-- end -->\n"


def main(names):
    """Write the outputs of pages; of all of them without names."""
    for path in sorted(DOCS.glob("*.md")):
        text = path.read_text()
        if "<!-- output -->" not in text or (names and path.stem not in names):
            continue
        with tempfile.TemporaryDirectory() as folder:
            cells = executed(text, folder)
        parts = OUTPUT.split(text)
        counts = [len(CELL.findall(part)) for part in parts[:-1]]
        last = [cells[sum(counts[: n + 1]) - 1] for n in range(len(counts))]
        between = [shown(cell, path.stem) for cell in last]
        path.write_text("".join(a + b for a, b in zip(parts, [*between, ""], strict=True)))


if __name__ == "__main__":
    main(sys.argv[1:])
