"""Links of pages to the viewer of an audit, which is in the folder ``view`` of the audit."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote, urlencode

from classwise.auditing.run.result import Audit
from classwise.reporting.escape import visible

FOLDER, PAGE = "view", "index.html"


def viewer_link(audit: Audit | None, folder: Path | None) -> str:
    """The relative address of the viewer of an audit, if it is built; else empty.

    Args:
        audit: the audit.
        folder: the folder of the page with the link; None: there is none.
    """
    if audit is None or audit.path is None or folder is None:
        return ""
    page = audit.path / FOLDER / PAGE
    return quote(Path(os.path.relpath(page, folder)).as_posix()) if page.is_file() else ""


def images_link(viewer: str, images: Mapping[str, object]) -> str:
    """The address of some images in a viewer, such as those of a confusion; see ``KEYS`` of its script."""
    return f"{viewer}#{urlencode({key: visible(str(value)) for key, value in images.items()})}"
