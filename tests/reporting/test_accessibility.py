"""Static checks of the HTML of each kind of page; `make test-pages` checks the same pages in a browser."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from html.parser import HTMLParser

import pytest

from classwise.reporting.pages.audit import MAX_BYTES

from .sample_pages import sample_pages

Attributes = dict[str, str]


class Elements(HTMLParser):
    """The start tags of a page in order, with their attributes, and the texts of captions."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, Attributes]] = []
        self.captions: list[str] = []
        self.inside = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, {name: value or "" for name, value in attrs}))
        self.inside = tag == "caption"
        self.captions += [""] if self.inside else []

    def handle_endtag(self, tag: str) -> None:
        self.inside = self.inside and tag != "caption"

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.captions[-1] += data

    def of(self, *tags: str) -> list[Attributes]:
        return [attributes for tag, attributes in self.found if tag in tags]


def problems(page: str) -> set[str]:
    """What keeps readers with a keyboard, a screen reader or a small screen from using a page."""
    elements = Elements(page)
    tags = [tag for tag, _ in elements.found]
    levels = [int(tag[1]) for tag in tags if re.fullmatch("h[1-6]", tag)]
    ids = Counter(attributes["id"] for _, attributes in elements.found if "id" in attributes)
    links = [link["href"] for link in elements.of("a")]
    captioned = [following for tag, following in itertools.pairwise(tags) if tag == "table"]
    scrollers = [division for division in elements.of("div") if "scroll" in division.get("class", "").split()]
    (viewport,) = [meta["content"] for meta in elements.of("meta") if meta.get("name") == "viewport"]
    checks = {
        "language": bool(elements.of("html")[0].get("lang")),
        "landmarks": all(tags.count(name) == 1 for name in ("header", "main", "footer")),
        "one h1, first": levels[0] == 1 and levels.count(1) == 1,
        "heading order": all(after <= before + 1 for before, after in itertools.pairwise(levels)),
        "skip link": tags.index("a") < tags.index("header") and links[0] == f"#{elements.of('main')[0].get('id')}",
        "link targets": all(link[1:] in ids for link in links if link.startswith("#")),
        "unique ids": max(ids.values()) == 1,
        "captions": set(captioned) <= {"caption"} and all(text.strip() for text in elements.captions),
        "scopes": all(head.get("scope") in {"col", "row"} for head in elements.of("th")),
        "figure labels": all(figure.get("role") == "img" and figure.get("aria-label") for figure in elements.of("svg")),
        "image texts": all(image.get("alt") for image in elements.of("img")),
        "scrollers": all(scroller.get("tabindex") == "0" and scroller.get("aria-label") for scroller in scrollers),
        "zoom": "user-scalable" not in viewport and "maximum-scale" not in viewport,
    }
    return {name for name, passed in checks.items() if not passed}


@pytest.mark.slow
def test_pages_have_no_static_problem_and_stay_small() -> None:
    for kind, page in sample_pages().items():
        assert problems(page) == set(), kind
        assert len(page.encode()) < MAX_BYTES, kind


FAULTS = {
    "language": (' lang="en"', ""),
    "landmarks": ("<footer>", "<section>"),
    "one h1, first": ("<h1>", "<h2>"),
    "heading order": ("<h2>Settings", "<h5>Settings"),
    "skip link": ('<a class="skip" href="#content"', '<a class="skip" href="#elsewhere"'),
    "unique ids": ("<header>", '<header id="content">'),
    "captions": ("<caption", "<p"),
    "scopes": (' scope="row"', ""),
    "figure labels": (' role="img"', ""),
    "image texts": ('alt="Adversarial example"', 'alt=""'),
    "scrollers": (' tabindex="0"', ""),
    "zoom": ("initial-scale=1", "initial-scale=1, user-scalable=no"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found(name: str) -> None:
    page = sample_pages()["audit"]
    assert FAULTS[name][0] in page
    assert name in problems(page.replace(*FAULTS[name]))


@pytest.mark.slow
def test_wide_and_narrow_drawings_replace_each_other() -> None:
    """Each drawing that is wider than a narrow screen is in a scroller, or has a second one that fits."""
    for kind, page in sample_pages().items():
        pairs = re.findall(r'<div class="wide">(<svg.*?</svg>)</div><div class="narrow">(<svg.*?</svg>)</div>', page)
        assert pairs or kind in {"bounds", "paper", "evidence"}, kind
        for wide, narrow in pairs:
            label = re.compile('aria-label="(.*?)"')
            assert label.findall(wide) == label.findall(narrow)
            assert "<title>" not in narrow
            assert re.findall('width="(.*?)"', narrow)[0] == "350"
        single = re.sub(r'<div class="(wide|narrow|scroll)".*?</svg>', "", page)
        assert all(float(width) <= 350 for width in re.findall(r'<svg [^>]*?width="([\d.]+)"', single)), kind
