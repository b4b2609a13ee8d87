"""`view`: write a viewer of one or two audits."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from classwise.auditing.compare.comparison import Comparison
from classwise.auditing.compare.sources import Source, as_list
from classwise.auditing.run.result import Audit
from classwise.core.errors import ClasswiseError
from classwise.core.files.json_values import json_text
from classwise.core.files.storage import write_bytes, write_text
from classwise.core.settings.accepted import BY_CONTENT
from classwise.core.settings.arguments import checked
from classwise.core.settings.names import checked_names, fresh_name
from classwise.reporting import formatting
from classwise.reporting.links import FOLDER, PAGE
from classwise.reporting.pages.report import report
from classwise.reporting.templating import render, style
from classwise.reporting.viewer import sprites
from classwise.reporting.viewer.data import FINDINGS, shown_images, viewer_data
from classwise.reporting.viewer.notes import notes_data

DATA, IMAGES = "data.js", "images"
"""The data of a viewer, and the folder of its sheets."""
OWN = ("viewer.js", "viewer.css")


@checked
def view(
    audits: Annotated[Source | Sequence[Source] | Mapping[str, Source], BY_CONTENT],
    out: str | os.PathLike[str] | None = None,
    *,
    data: Annotated[Any, BY_CONTENT] = None,
    **options: Any,
) -> Path:
    """Write a viewer of one audit, or of two audits of the same images: a static site that opens from disk.

    It shows the classes, their images, and for each image the predictions under each attack. The site embeds small
    images of the data. Clean images are those of the data set that the audit names, if it is on this machine and its
    SHA-256 is that of the audit; else the examples that the audit saved, or placeholders. Adversarial images are shown
    if they were saved (``save="images"``). Notes and tags on images, which the site exports as ``notes.json``, are
    read from this file in the folders of the audits.

    Args:
        audits: one or two audits, their folders, or run folders with one audit each; or these by name.
        out: the folder of the site; a viewer in it is replaced. None: ``view`` in the folder of the only audit, whose
            ``page.html`` is then written again, with links to the viewer.
        data: the audited images: `Images`, a `Stream`, a name or a path; None: as above.
        **options: of `load_data`, for a name or path.

    Returns:
        The page of the viewer.

    Raises:
        IncompleteError: if an audit is incomplete.
        ClasswiseError: if an audit cannot be read, the audits are not of the same images, the data or the images of
            ``notes.json`` are others, or the folder contains other files.

    Example:
        >>> import tempfile
        >>> import classwise as cw
        >>> outcomes = cw.Outcomes.from_predictions([0, 1], clean=[0, 1], attacks={"pgd": [0, 0]})
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     cw.view(cw.Audit(outcomes), f"{folder}/site").name
        'index.html'
    """
    loaded = _loaded(audits)
    (first, *others) = loaded.values()
    folder = _folder(out, None if others else first)
    if others:
        Comparison({name: (audit,) for name, audit in loaded.items()}, group=first.group)
    for audit in loaded.values():
        audit.outcomes.require_complete()
    shown, sampled = shown_images([*loaded.values()])
    pixels = sprites.pixels_of([*loaded.values()], shown, data, options)
    content = viewer_data(loaded, shown) | {"notes": notes_data(loaded.values())}
    if folder.is_dir():
        shutil.rmtree(folder / IMAGES, ignore_errors=True)
    content["pixels"] = _write_sheets(folder / IMAGES, pixels, [*loaded.values()])
    content["findings"] = FINDINGS
    text = json_text(json_text(content, compact=True))
    write_text(folder / DATA, f"const CONTENT = {text};\n")
    here = Path(__file__).parent
    write_text(folder / OWN[0], (here / OWN[0]).read_text(encoding="utf-8"))
    write_text(folder / OWN[1], f"{style()}\n{(here / OWN[1]).read_text(encoding='utf-8')}")
    quality = content["pixels"]["quality"]
    lossy = "" if quality is None else f" Images are compressed with loss (WebP, quality {quality})."
    notes = [
        pixels.sentence + lossy,
        "This site embeds images of the data. Check the licence and privacy before you share it.",
    ]
    write_text(folder / PAGE, _page(content, [*filter(None, (sampled, *notes))], first.alpha))
    if out is None and first.path is not None and (page := first.path / "page.html").is_file():
        report(first, page)
    return folder / PAGE


def _loaded(audits: Source | Sequence[Source] | Mapping[str, Source]) -> dict[str, Audit]:
    """The audits by name.

    Raises:
        ClasswiseError: if they are not one or two, or one cannot be read.
    """
    sources = [*audits.values()] if isinstance(audits, Mapping) else as_list(audits)
    if not 1 <= len(sources) <= 2:
        raise ClasswiseError(f"audits: {len(sources)} are given; a viewer shows one or two")
    read = [source if isinstance(source, Audit) else Audit.load(Path(source)) for source in sources]
    if isinstance(audits, Mapping):
        return dict(zip(checked_names([*audits], "names of audits"), read, strict=True))
    found: dict[str, Audit] = {}
    for audit in read:
        found[fresh_name(_name(audit, read), found)] = audit
    return found


def _name(audit: Audit, among: Sequence[Audit]) -> str:
    """The name of an audit, or if two have the same, that of the folder of its audit or run that differs."""
    if audit.path is not None and len(among) > 1:
        parts = [[*reversed(other.path.absolute().parts)] if other.path else [] for other in among]
        for name, others in zip(reversed(audit.path.absolute().parts), zip(*parts, strict=False), strict=False):
            if len({*others}) > 1:
                return str(name)
    return audit.name


def _folder(out: str | os.PathLike[str] | None, audit: Audit | None) -> Path:
    if out is None and (audit is None or audit.path is None or not audit.path.is_dir()):
        raise ClasswiseError("out (--out): is required for two audits, and for an audit without a folder")
    folder = Path(out) if out is not None else audit.path / FOLDER  # type: ignore[union-attr,operator]  # checked above
    if folder.is_file():
        raise ClasswiseError(f"{folder} is a file; give a folder")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / OWN[0]).is_file():
        raise ClasswiseError(f"{folder} contains other files; give a new folder, or that of a viewer")
    return folder


def _write_sheets(folder: Path, sources: sprites.PixelSources, audits: Sequence[Audit]) -> dict[str, Any]:
    """Write all sheets; returns how the script finds the tiles."""
    kinds: dict[str, sprites.Tiles] = {} if sources.clean is None else {"clean": sources.clean}
    factors = {}
    for (number, attack), tiles in sources.adversarial.items():
        name = f"{number}-{audits[number].attacks.index(attack)}"
        kinds[f"adversarial-{name}"] = tiles
        if sources.clean is not None:
            kinds[f"difference-{name}"], factors[name] = sprites.differences(tiles, sources.clean)
    kinds = {name: tiles for name, tiles in kinds.items() if len(tiles.pixels)}
    quality = sprites.quality_of([*kinds.values()])
    for name, tiles in kinds.items():
        for number, content in enumerate(sprites.sheets(tiles, quality)):
            write_bytes(folder / f"{name}-{number}.webp", content)
    height, width = next(iter(kinds.values())).pixels.shape[1:3] if kinds else (1, 1)
    return {
        "height": height,
        "width": width,
        "tiles": sprites.TILES,
        "columns": sprites.COLUMNS,
        "quality": quality,
        "factors": factors,
        "places": {name: tiles.places.tolist() for name, tiles in kinds.items()},
    }


def _page(content: Mapping[str, Any], notes: Sequence[str], alpha: float) -> str:
    audits = content["audits"]
    names = [audit["name"] for audit in audits]
    over = itertools.zip_longest(*(audit["over"] for audit in audits), fillvalue="")
    context = {
        "title": f"{' and '.join(names)}: images",
        "over": ["classwise view", *filter(None, dict.fromkeys(part for parts in over for part in parts))],
        "headline": audits[0]["headline"] if len(audits) == 1 else f"{names[1]} compared with {names[0]}",
        "audits": audits,
        "notes": notes,
        "level": formatting.level(alpha),
        "plural": formatting.plural(content["kind"]),
        "singular": formatting.singular(content["kind"]),
    }
    return render("viewer.html", context)
