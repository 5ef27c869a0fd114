"""The site. CONTRIBUTING.md says how to build it."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from myst_parser.parsers.sphinx_ import MystParser
from nbclient import NotebookClient

# The checkout, not what is installed.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rdm_solo import __version__

project = "rdm_solo"
release = version = __version__
extensions = ["myst_parser", "sphinx.ext.apidoc", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
# A page for each room, written into docs/api/ when the site is built.
apidoc_modules = [
    {
        "path": "../rdm_solo",
        "destination": "api",
        "exclude_patterns": ["**/__main__.py"],
        "module_first": True,
        "separate_modules": False,
        "include_private": False,
        "max_depth": 2,
        "automodule_options": {"members"},
    }
]
exclude_patterns = ["_build", ".ipynb_checkpoints"]
default_role = "py:obj"  # `name` in a docstring: a link where there is something to link to
highlight_language = "text"  # indented blocks are commands; Python is marked as such

html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_title = "rdm_solo"
html_show_copyright = False
html_show_sphinx = False
html_copy_source = False
html_math_renderer = "mathml"

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3

# An override without a docstring does what its parent promises: it needs no entry here.
autodoc_inherit_docstrings = False
# A room's __init__ repeats names of its modules, which have the entries.
autodoc_default_options = {"ignore-module-all": True}
autodoc_member_order = "bysource"
# Optional packages, which the site does not need.
autodoc_mock_imports = ["transformers", "wandb"]
autodoc_use_type_comments = False  # there are none; looking for them takes a fifth of the time


def visit_math(self: Any, node: nodes.math | nodes.math_block) -> None:
    """Formulas as MathML, which browsers draw by themselves: no page loads a script for them."""
    block = isinstance(node, nodes.math_block)
    self.body.append(tex2mathml(node.astext(), as_block=block))
    raise nodes.SkipNode


class NotebookParser(MystParser):  # type: ignore[misc]
    """Run a notebook in a temporary folder, and read it with its outputs as Markdown."""

    supported = ("notebook",)

    def parse(self, inputstring: str, document: nodes.document) -> None:
        notebook = nbformat.reads(inputstring, as_version=4)
        with tempfile.TemporaryDirectory() as folder:
            resources = {"metadata": {"path": folder}}
            client = NotebookClient(notebook, resources=resources, coalesce_streams=True)
            client.execute(env=os.environ | {"PYTHONPATH": sys.path[0]})
        blocks = []
        for cell in notebook.cells:
            if cell.cell_type == "markdown":
                blocks.append(cell.source)
            else:
                blocks.append(f"```python\n{cell.source}\n```")
                blocks += map(markdown_of, cell.outputs)
        super().parse("\n\n".join(blocks), document)


def markdown_of(output: nbformat.NotebookNode) -> str:
    """Return a cell's output as Markdown."""
    if output.output_type == "stream":
        return f"```\n{output.text}```"
    if "image/png" in output.data:
        picture = output.data["image/png"].replace("\n", "")
        return f"![](data:image/png;base64,{picture})"
    if "text/html" in output.data:
        # With the theme's class for tables, in a box where a wide one scrolls.
        table = output.data["text/html"].replace('border="1" class="dataframe"', 'class="docutils"')
        return f'```{{raw}} html\n<div style="overflow-x: auto">{table}</div>\n```'
    return f"```\n{output.data['text/plain']}\n```"


def setup(app: Any) -> None:
    app.add_source_suffix(".ipynb", "notebook")
    app.add_source_parser(NotebookParser)
    app.add_html_math_renderer("mathml", (visit_math, None), (visit_math, None))
