"""Pages as trees of elements."""

from __future__ import annotations

import re
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree as ET

VOID = {"meta", "img", "br", "link", "input", "hr"}


class _Parser(HTMLParser):
    """Builds a tree; a tag that closes another element than the last one opened is an error."""

    def __init__(self) -> None:
        super().__init__()
        self.tree = ET.TreeBuilder()
        self.open = ["page"]
        self.tree.start("page", {})

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tree.start(tag, {name: value or "" for name, value in attrs})
        if tag in VOID:
            self.tree.end(tag)
        else:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        self.tree.end(tag)

    def handle_data(self, data: str) -> None:
        self.tree.data(data)


def parsed(text: str) -> ET.Element:
    """The elements of HTML below an element ``page``; each must be closed."""
    parser = _Parser()
    parser.feed(text)
    parser.close()
    parser.handle_endtag("page")
    assert not parser.open
    return parser.tree.close()


def tags(page: ET.Element) -> list[str]:
    """The tags in the order of the elements, but for that of the page."""
    return [element.tag for element in page.iter()][1:]


def addresses(page: ET.Element) -> list[str]:
    """The addresses that a page refers to."""
    keys = {"src", "href", "action"}
    return [value for element in page.iter() for key, value in element.items() if key in keys]


def visible(page: Path) -> str:
    """The text of a page, without tags, and with single blanks."""
    text = unescape(re.sub(r"<[^>]*>", " ", page.read_text(encoding="utf-8")))
    return re.sub(r"\s+", " ", text.replace("\u00a0", " "))


def rows_of(element: ET.Element) -> list[list[str]]:
    """The texts of the cells of each row."""
    return [[text_of(cell) for cell in row] for row in element.iter("tr")]


def text_of(element: ET.Element) -> str:
    """The text of an element, without white space between elements."""
    return "".join(text for text in element.itertext() if text.strip())
