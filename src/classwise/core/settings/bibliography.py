"""The papers that parts cite as their sources, and their BibTeX entries."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import resources

import yaml

_VENUE_FIELDS = {"inproceedings": "booktitle", "article": "journal", "book": "publisher", "misc": "howpublished"}
"""The BibTeX field of the venue, by the kind of entry."""


@dataclass(frozen=True)
class Paper:
    """A paper.

    Args:
        key: the BibTeX key.
        authors: the authors, family name first, joined by "and".
        title: the title.
        venue: the proceedings, the journal or the publisher.
        year: the year of publication.
        kind: the BibTeX entry type.
    """

    key: str
    authors: str
    title: str
    venue: str
    year: int
    kind: str = "inproceedings"

    def bibtex(self) -> str:
        """The BibTeX entry."""
        place = _VENUE_FIELDS[self.kind]
        fields = {"author": self.authors, "title": f"{{{self.title}}}", place: self.venue, "year": str(self.year)}
        lines = ",\n".join(f"  {name} = {{{value}}}" for name, value in fields.items())
        return f"@{self.kind}{{{self.key},\n{lines}\n}}"

    def line(self) -> str:
        """The reference in one line of text, with the family names of the authors."""
        names = [author.partition(",")[0] for author in self.authors.split(" and ")]
        authors = " and ".join(names) if len(names) < 3 else f"{names[0]} et al."
        return f"{authors}, {self.title}, {self.venue}, {self.year}"


@dataclass(frozen=True)
class OtherSource:
    """A source that is not in the bibliography, such as that of a part of another package.

    Args:
        key: the BibTeX key.
        note: the source, as the part states it.
    """

    key: str
    note: str

    def bibtex(self) -> str:
        """The BibTeX entry, to be completed by the reader."""
        return f"@misc{{{self.key},\n  note = {{{self.note}}}\n}}"

    def line(self) -> str:
        """The source."""
        return self.note


def _read() -> dict[str, Paper]:
    entries = yaml.safe_load(
        (resources.files("classwise.core.settings") / "bibliography.yaml").read_text(encoding="utf-8")
    )
    venues = entries["venues"]
    return {
        key: Paper(key, **{**fields, "venue": venues.get(fields["venue"], fields["venue"])})
        for key, fields in entries["papers"].items()
    }


PAPERS: Mapping[str, Paper] = _read()
"""Every paper by its key."""


def papers_of(sources: Iterable[str]) -> list[Paper | OtherSource]:
    """The papers of sources such as ``"madry2018towards, eq. 2.1"``, each once."""
    papers: dict[str, Paper | OtherSource] = {}
    for source in sources:
        name = source.partition(",")[0]
        key = re.sub(r"\W+", "-", name).strip("-")
        papers.setdefault(key, PAPERS.get(name) or OtherSource(key, source))
    return list(papers.values())


def line_of(source: str) -> str:
    """A source in one line of text: the paper and the place in it. A source without a known key is unchanged."""
    key, comma, place = source.partition(",")
    return f"{PAPERS[key].line()}{comma}{place}" if key in PAPERS else source
