"""Runs examples/first_layer.ipynb by nbclient, and checks its pictures and sums."""

import os
import re
import sys

import support  # adds the package to PYTHONPATH

try:
    import ipykernel  # noqa: F401: the process of the notebook
    import matplotlib  # noqa: F401: of the notebook
    import nbclient
    import nbformat
except ImportError as error:
    support.skip(f"the notebook needs nbclient, ipykernel and matplotlib: {error}")

PATH = os.path.join(support.ROOT, "..", "examples", "first_layer.ipynb")
PICTURES = 4
LARGEST_ERROR = 0.05  # sums of F16 numbers, rounded twice


def require(condition, *facts):
    if not condition:
        sys.exit(f"first_layer.ipynb: {facts}")


def main():
    notebook = nbformat.read(PATH, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    stored = [cell.source for cell in code if cell.outputs or cell.execution_count]
    require(not stored, "the file contains outputs; clear them", stored)
    nbclient.NotebookClient(notebook, timeout=240, kernel_name="python3").execute()
    outputs = [output for cell in code for output in cell.outputs]
    pictures = [o for o in outputs if "image/png" in o.get("data", {})]
    require(len(pictures) == PICTURES, len(pictures), "pictures")
    text = "".join(o.text for o in outputs if o.output_type == "stream" and o.name == "stdout")
    print(text)
    ranks = re.findall(r"^rank (\d): (\d+) rows, largest error ([\d.]+)$", text, re.MULTILINE)
    require([int(r) for r, _, _ in ranks] == [0, 1, 2, 3], ranks)
    require(sum(int(rows) for _, rows, _ in ranks) == 4 * 12 * 2, ranks)
    require(all(float(error) < LARGEST_ERROR for _, _, error in ranks), ranks)
    require("32 calls on 4 ranks" in text, "the trace has other calls")
    if len(sys.argv) > 1:  # a file for readers
        nbformat.write(notebook, sys.argv[1])


main()
