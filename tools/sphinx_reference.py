"""Sphinx extension: reference pages from the sources, and links to pages that classwise wrote.

- The directive ``generated`` inserts one of the texts of `tools.reference`.
- The directive ``public-api`` inserts the documentation of every public name of a module, by autodoc.
- A link to a page of `tools.result_pages`, or to the folder of its data, opens the page, which is written to the
  same place in the site.
"""

from __future__ import annotations

import importlib
import inspect
import os
import re
from pathlib import Path
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.docutils import SphinxDirective
from tools import reference, result_pages


class Generated(SphinxDirective):
    """Insert a text of `tools.reference`, as if it were written in the page; ``level`` is that of its headings."""

    required_arguments = 1
    option_spec: ClassVar[dict[str, Any]] = {"level": directives.nonnegative_int}

    def run(self) -> list[nodes.Node]:
        """The nodes of the text."""
        name = self.arguments[0]
        if name not in reference.PAGES:
            raise self.error(f"unknown text {name!r}; expected one of {', '.join(reference.PAGES)}")
        heading = "#" * self.options.get("level", 2) + " `"
        text = re.sub("^## `", heading, reference.PAGES[name](), flags=re.MULTILINE)
        return self.parse_text_to_nodes(text, allow_section_headings=True)


class PublicApi(SphinxDirective):
    """Document the public names of a module: those of ``__all__``, or those given as content."""

    required_arguments = 1
    has_content = True

    def run(self) -> list[nodes.Node]:
        """The nodes of all names, each below a heading of its own."""
        module = importlib.import_module(self.arguments[0])
        names = [line.strip() for line in self.content if line.strip()]
        if not names:
            names = [name for name in module.__all__ if not name.startswith("_")]
        text = "\n\n".join(_documented(module, name) for name in names)
        return self.parse_text_to_nodes(text, allow_section_headings=True)


def _documented(module: Any, name: str) -> str:
    value = getattr(module, name)
    path = f"{module.__name__}.{name}"
    if inspect.ismodule(value):
        return f"## `{name}`\n\nThe module `{value.__name__}`: {{py:mod}}`{value.__name__}`."
    if inspect.isclass(value):
        kind, options = "autoclass", ":members:"
    elif callable(value):
        kind, options = "autofunction", ""
    else:
        kind, options = "autodata", ":no-value:"
    directive = f".. {kind}:: {path}\n" + "".join(f"   {line}\n" for line in options.splitlines())
    return f"## `{name}`\n\n```{{eval-rst}}\n{directive}```"


class LinkResultPages(SphinxPostTransform):
    """Turn links to pages of results into links to the pages that `write_result_pages` writes."""

    default_priority = 5

    def run(self, **_: Any) -> None:
        """Replace the nodes of one document."""
        here = Path(self.env.docname).parent
        for node in list(self.document.findall(addnodes.pending_xref)):
            file = os.path.normpath(here / node["reftarget"])
            name = file.removeprefix("results/")
            file = f"results/{result_pages.DATA[name]}" if name in result_pages.DATA else file
            if name in {*result_pages.PAGES, *result_pages.DATA}:
                link = nodes.reference("", "", *node.children, refuri=os.path.relpath(file, here), internal=True)
                node.replace_self(link)


def write_result_pages(app: Sphinx, error: Exception | None) -> None:
    """Write the pages of results into the site."""
    if error is None:
        result_pages.write(Path(app.outdir) / "results")


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directives and the links."""
    app.add_directive("generated", Generated)
    app.add_directive("public-api", PublicApi)
    app.add_post_transform(LinkResultPages)
    app.connect("build-finished", write_result_pages)
    return {"parallel_read_safe": False, "parallel_write_safe": False}
