"""Check the links of the built documentation: every local target and every anchor exists. No network is used.

python -m tools.check_links build/docs
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """The links and the anchors of one page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = {"", "top"}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect the attributes of an element."""
        given = {key: value for key, value in attrs if value}
        self.anchors |= {given[key] for key in ("id", "name") if key in given and tag != "meta"}
        self.links += [given[key] for key in ("href", "src") if key in given]


def missing(site: Path) -> Iterator[str]:
    """A line for each link of the site's pages without a target."""
    files = [path for path in sorted(site.rglob("*.html")) if "_static" not in path.parts]  # templates of the theme
    pages = {path.resolve(): Page(path.read_text(encoding="utf-8")) for path in files}
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if target.is_dir():
                target /= "index.html"
            if not target.exists():
                yield f"{path.relative_to(site.resolve())}: {link}: no such file"
            elif target in pages and unquote(parts.fragment) not in pages[target].anchors:
                yield f"{path.relative_to(site.resolve())}: {link}: no such anchor"


def main(arguments: Sequence[str]) -> int:
    """Print the missing targets; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.check_links", description="Check the links of a site.")
    parser.add_argument("site", type=Path, metavar="SITE", help="the folder of its pages, such as build/docs")
    site = parser.parse_args(arguments).site
    if not any(site.glob("*.html")):
        parser.error(f"{site} contains no page; build one with make docs")
    found = list(missing(site))
    print("\n".join(found) or f"{site}: all local links have targets")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
