"""Run the tutorials as notebooks, and write under each cell what it prints and draws.

    python docs/site/outputs.py [NAME ...]

Needs jupytext, nbclient, ipykernel and scikit-learn beside tf_adasum with [examples,notebook]. The
text goes between `<!-- output -->` and `<!-- end -->` on the page, plots to docs/images/.
"""

import base64
import re
import sys
import tempfile
from pathlib import Path

import jupytext
import nbclient
import nbformat

TUTORIALS = Path(__file__).resolve().parents[1] / "tutorials"
IMAGES = TUTORIALS.parent / "images"
OUTPUT = re.compile(r"\n<!-- output -->\n.*?<!-- end -->\n", re.DOTALL)
CELL = re.compile(r"^```python\n.*?^```\n", re.DOTALL | re.MULTILINE)
LEFT_OUT = re.compile(r"^INFO:tensorflow:.*\n", re.MULTILINE)  # TensorFlow's own logger


def notebook_of(text):
    """Return the notebook that a reader downloads from a tutorial's page.

    Args:
        text: of the page, in Markdown.
    """
    return jupytext.reads(text.replace("```sh\n", "```\n"), "md")


def executed(text, folder, more=()):
    """Return the code cells of a tutorial after they have run from first to last.

    Args:
        text: of the page.
        folder: an empty folder to run in.
        more: code of further cells.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell raises.
    """
    notebook = notebook_of(text)
    notebook.cells += [nbformat.v4.new_code_cell(code) for code in more]
    resources = {"metadata": {"path": str(folder)}}
    client = nbclient.NotebookClient(
        notebook, timeout=600, kernel_name="python3", resources=resources
    )
    client.execute()
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def shown(cell, name):
    """Return what a page shows under a cell; "" if the cell prints and draws nothing."""
    printed, pictures = "", []
    for output in cell.outputs:
        if output.output_type == "stream" and output.name == "stdout":
            printed += output.text
        if image := output.get("data", {}).get("image/png"):
            file = IMAGES / f"tutorial-{name}.png"
            file.write_bytes(base64.b64decode(image))
            pictures.append(f"![What the cell above draws](../images/{file.name})\n")
    printed = LEFT_OUT.sub("", printed).strip()
    blocks = [f"```text\n{printed}\n```\n"] if printed else []
    if not blocks and not pictures:
        return ""
    return (
        "\n<!-- output -->\nYou should see:\n\n" + "\n".join(blocks + pictures) + "<!-- end -->\n"
    )


def main(names):
    """Write the outputs of tutorials; of all of them without names."""
    for path in sorted(TUTORIALS.glob("*.md")):
        if names and path.stem not in names:
            continue
        text = OUTPUT.sub("", path.read_text())
        with tempfile.TemporaryDirectory() as folder:
            outputs = [shown(cell, path.stem) for cell in executed(text, folder)]
        blocks = CELL.findall(text)
        pieces = [block + output for block, output in zip(blocks, outputs, strict=True)]
        between = CELL.split(text)
        path.write_text("".join(map("".join, zip(between, [*pieces, ""], strict=True))))


if __name__ == "__main__":
    main(sys.argv[1:])
