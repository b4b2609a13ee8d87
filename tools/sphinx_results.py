"""Sphinx extension: links to the pages of results.

A link to a page of `tools.result_pages`, or to the folder of its data, opens the page, which is written to the same
place in the site.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform
from tools import result_pages


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
    """Register the links."""
    app.add_post_transform(LinkResultPages)
    app.connect("build-finished", write_result_pages)
    return {"parallel_read_safe": False, "parallel_write_safe": False}
