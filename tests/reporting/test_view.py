"""The viewer of audits: its data agree with the tables, its texts are inert, and its pixels are the audited ones."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
import unicodedata
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

import classwise as cw
from classwise.auditing.outcomes.table import Outcomes
from classwise.core.errors import IncompleteError
from classwise.reporting.viewer import data as viewer_data
from classwise.reporting.viewer import sprites
from classwise.reporting.viewer.data import shown_images
from classwise.reporting.viewer.notes import images_digest
from classwise.reporting.viewer.sprites import Tiles, differences, quality_of, sheet, small
from classwise.stats.intervals import proportion_interval
from tests.hostile.names import hostile_names
from tests.refusals import check_refused

from .conftest import audit_of
from .sample_pages import sample_images

PROGRAM = Path(sprites.__file__).parent


def content_of(page: Path) -> dict[str, Any]:
    """The data of a viewer, read as its script does."""
    text = (page.parent / "data.js").read_text(encoding="ascii")
    content: dict[str, Any] = json.loads(json.loads(text.removeprefix("const CONTENT = ").removesuffix(";\n")))
    return content


def test_the_data_agree_with_the_tables(tmp_path: Path) -> None:
    audit = audit_of()
    content = content_of(cw.view(audit, tmp_path / "site"))
    label, (about,) = np.asarray(content["label"]), content["audits"]
    assert content["sizes"] == audit.by_class["n"].tolist()
    for name in audit.names:
        found = about["names"][name]
        prediction = np.asarray(found["prediction"])
        correct = np.bincount(label[prediction == label], minlength=4)
        assert correct.tolist() == found["correct"] == audit.counts(name).correct.tolist()
        np.testing.assert_allclose(found["low"], audit.by_class[f"{name}_low"], atol=1e-4)
        matrix = np.zeros((4, 4), int)
        np.add.at(matrix, (label, prediction), 1)
        np.testing.assert_array_equal(matrix, audit.confusion(name))
        listed = [(row, *pair) for row, pairs in enumerate(found["confusions"]) for pair in pairs]
        assert sum(count for *_, count in listed) == matrix.sum() - np.trace(matrix)
        assert all(matrix[row, predicted] == count for row, predicted, count in listed)
    assert about["strongest"] == "cw"
    assert "placeholder, since" in (tmp_path / "site/index.html").read_text()


def test_two_audits_are_compared_on_the_same_images(tmp_path: Path) -> None:
    before, after = audit_of(seed=0), audit_of(seed=1)
    content = content_of(cw.view({"at": before, "cfa": after}, tmp_path))
    changes, comparison = content["changes"], cw.compare({"at": before, "cfa": after})
    pair = comparison.pair("cfa", "at")
    np.testing.assert_allclose(changes["all"]["difference"], pair.classes["difference"], atol=1e-4)
    was, now = before.outcomes.correct("all"), after.outcomes.correct("all")
    assert sum(changes["all"]["lost"]) == (was & ~now).sum()
    assert sum(changes["all"]["gained"]) == (now & ~was).sum()
    assert changes["all"]["sentences"][0].startswith("cfa minus at, under every attack together")
    check_refused("images", cw.view, [before, audit_of(per_class=90)], tmp_path / "other")


def grouped_audit(**options: Any) -> cw.Audit:
    """An audit with two groupings of its images and a name for each."""
    outcomes = audit_of(**options).outcomes
    rows = np.arange(len(outcomes))
    outcomes = outcomes.add_groups("light", rows % 2, ["dark", "bright"]).add_groups("site", rows % 7 // 3, [*"abc"])
    names = [f"{outcomes.class_names[label]}/{row}.png" for row, label in zip(rows, outcomes.labels, strict=True)]
    return cw.Audit(with_names(outcomes, names))


def with_names(outcomes: Outcomes, names: list[str]) -> Outcomes:
    by_index = dict(zip(outcomes.index, names, strict=True))
    return Outcomes(outcomes.frame.assign(name=outcomes.frame["index"].map(by_index)), outcomes.meta)


@pytest.mark.parametrize("group", [None, "site"])
def test_crossings_agree_with_the_tables(tmp_path: Path, group: str | None) -> None:
    first, second = (dataclasses.replace(grouped_audit(seed=seed), group=group) for seed in (0, 1))
    content = content_of(cw.view({"a": first, "b": second}, tmp_path / "site"))
    sides = [group or "class", *(grouping["name"] for grouping in content["groupings"])]
    assert sides == ([*("class", "light", "site")] if group is None else [*("site", "class", "light")])
    found = content["crossings"]
    cells = {key: place for place, key in enumerate(found["keys"])}
    assert len(cells) == len(found["keys"]) == (4 + 1) * (2 + 1) * (3 + 1) - 1  # any group, but of all groupings
    for model, audit in enumerate((first, second)):
        outcomes = audit.outcomes
        table = pd.DataFrame({side: outcomes.grouping(side).ids for side in sides})
        for name in outcomes.names:
            about = found["accuracy"][model][name]
            for key, place in cells.items():
                chosen = [(side, int(held)) for side, held in zip(sides, key.split(","), strict=True) if held]
                member = np.all([table[side] == held for side, held in chosen], axis=0)
                assert (found["n"][place], about["correct"][place]) == (
                    member.sum(),
                    outcomes.correct(name)[member].sum(),
                )
            low, high = proportion_interval(about["correct"], found["n"])
            np.testing.assert_allclose((about["low"], about["high"]), (low, high), atol=1e-4)
    assert content["files"] == [first.outcomes.image_names[index] for index in content["index"]]


def test_crossings_are_of_all_images_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    audit = grouped_audit(per_class=300)
    monkeypatch.setattr(viewer_data, "MAX_CELLS", 30)
    found = viewer_data.crossings({"a": audit})
    assert sum(found["n"][:4]) == len(audit.outcomes)
    assert len(found["keys"]) == 4 + 2 + 3 + 4 * 2 + 4 * 3  # not those of light and site, and of all three
    monkeypatch.setattr(viewer_data, "MAX_GROUPS", 2)
    assert [*viewer_data.other_groupings(audit)] == ["light"]
    assert viewer_data.crossings({"a": audit_of()}) == {}
    assert content_without_groupings() == {"groupings": [], "files": None, "crossings": {}}


def content_without_groupings() -> dict[str, Any]:
    audit = audit_of()
    content = viewer_data.viewer_data({"a": audit}, shown_images([audit])[0])
    return {key: content[key] for key in ("groupings", "files", "crossings")}


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    given = (name for name in hostile_names(Random(0)) if name.strip())
    names = {unicodedata.normalize("NFC", " ".join(name.split())): name for name in given}
    hostile = ("</script><script>alert(1)</script>", "<img src=x onerror=alert(1)>", "__proto__", '"); //')
    names |= dict(zip(hostile, hostile, strict=True))
    audit = audit_of(len(names), 4, tuple(names.values()), meta={"model": "<b>m</b>\u202e", "data": "</title>"})
    outcomes, files = audit.outcomes, itertools.cycle(filter(None, names.values()))
    outcomes = outcomes.add_groups("<b>site</b>\u202e", outcomes.index % len(names), [*names.values()])
    audit = cw.Audit(with_names(outcomes, [*itertools.islice(files, len(outcomes))]))
    page = cw.view({"<i>a</i>\u2028": audit}, tmp_path)
    content, html = content_of(page), page.read_text(encoding="utf-8")
    assert len(set(content["groups"])) == len(names)
    assert not re.search("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e]", json.dumps(content, ensure_ascii=False))
    assert re.findall("<script[^>]*>", html) == ['<script src="data.js">', '<script src="viewer.js">']
    assert not re.search(r"<(b|i|img)\b| on\w+=|style=", html)
    script = (PROGRAM / "viewer.js").read_text(encoding="utf-8")
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|fetch|https?:", script)


def test_clean_and_adversarial_pixels_are_the_audited_ones(tmp_path: Path) -> None:
    audit, images = sample_images(audit_of(per_class=20))
    page = cw.view(audit, tmp_path, data=images)
    content = content_of(page)
    assert "Clean images: noise, SHA-256 as in the audit." in page.read_text()
    places = content["pixels"]["places"]
    assert places["clean"] == [*range(80)]
    found = np.asarray(Image.open(tmp_path / "images/clean-0.webp"))[8:16, 24:32]
    assert content["pixels"]["quality"] is None
    np.testing.assert_array_equal(found, images.x[content["index"][19]].permute(1, 2, 0))
    turned = audit.outcomes.correct("clean") & ~audit.outcomes.correct("pgd")
    saved = np.flatnonzero(turned & (audit.outcomes.index % 2 == 0))
    assert [content["index"][place] for place in places["adversarial-0-1"]] == saved.tolist()
    check_refused(
        "not the audited images, toy test: the SHA-256 of noise differs",
        cw.view,
        audit,
        tmp_path / "other",
        data=images.with_pixels(images.x // 2, "noise"),
    )


def test_a_subset_is_found_in_the_whole_data(tmp_path: Path) -> None:
    images = cw.load_data("digits", subset=100)
    labels = images.y.numpy()
    outcomes = Outcomes.from_predictions(
        labels, labels, {"pgd": labels}, data="digits", split="test", data_hash=images.fingerprint()
    )
    frame = outcomes.frame.assign(index=np.tile(images.index.numpy(), 2))
    page = cw.view(cw.Audit(Outcomes(frame, outcomes.meta)), tmp_path)
    assert "Clean images: digits test, SHA-256 as in the audit." in page.read_text()
    assert len(content_of(page)["pixels"]["places"]["clean"]) == 100


def test_of_many_images_all_of_the_weakest_classes_and_a_sample_are_shown() -> None:
    audit = audit_of(4, 100, accuracy=(0.9, 0.2, 0.6, 0.8))
    every, none = shown_images([audit])
    places, sentence = shown_images([audit], most=250)
    assert (len(every), none) == (400, "")
    counts = np.bincount(audit.outcomes.labels[places])
    assert (counts.sum(), counts[1]) == (250, 100)
    assert counts[[0, 2, 3]].tolist() == [50, 50, 50]
    assert np.all(np.diff(places) > 0)
    assert sentence.startswith("250 of 400 images are shown: all images of the weakest 1 classes")


def test_large_images_are_reduced_and_compressed_to_fit() -> None:
    pixels = small(torch.rand(40, 1, 96, 128, generator=torch.Generator().manual_seed(0)))
    assert pixels.shape == (40, 48, 64, 3)
    tiles = Tiles(np.arange(40), pixels)
    exact = len(sheet(pixels, None))
    assert quality_of([tiles], most=exact + 1000) is None
    quality = quality_of([tiles], most=exact // 4)
    assert quality is not None
    assert len(sheet(pixels, quality)) <= exact // 4
    moved, factor = differences(Tiles(np.arange(0, 40, 2), pixels[::2] // 2), tiles)
    assert (len(moved.pixels), factor) == (20, 127.5 / (pixels[::2] - pixels[::2] // 2).max())


def test_notes_are_read_from_the_folders_of_the_audits(tmp_path: Path) -> None:
    audits = [cw.Audit.load(audit_of(per_class=20, seed=seed).save(tmp_path / str(seed))) for seed in (0, 1)]
    assert content_of(cw.view(audits[0]))["notes"] == notes_of(audits[0])
    first = notes_of(audits[0], {"index": 3, "tags": ["blurred"], "text": "<b>\n\u202e"})
    second = notes_of(audits[0], {"index": 3, "name": "3.png", "tags": [], "text": "a truck"})
    for audit, notes in zip(audits, (first, second), strict=True):
        assert audit.path is not None
        (audit.path / "notes.json").write_text(json.dumps(notes))
    found = content_of(cw.view(audits, tmp_path / "site"))["notes"]
    assert found == {**first, "notes": [*first["notes"], *second["notes"]]}
    assert content_of(cw.view(audits[1]))["notes"] == second


def notes_of(audit: cw.Audit, *notes: dict[str, Any]) -> dict[str, Any]:
    return {"schema_version": 1, "images": images_digest(audit.outcomes), "notes": [*notes]}


def test_notes_are_on_the_audited_images() -> None:
    outcomes, (audit, images) = audit_of().outcomes, sample_images(audit_of())
    digest = images_digest(outcomes)
    assert images_digest(audit.outcomes) == images.fingerprint()
    assert digest == images_digest(audit_of(seed=1).outcomes)
    assert digest != images_digest(audit_of(per_class=20).outcomes)
    assert digest != images_digest(Outcomes(outcomes.frame.assign(index=outcomes.frame["index"] + 1), outcomes.meta))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"images": "0" * 64}, "notes on other images than those of"),
        ({"notes": [{"index": 80, "tags": [], "text": ""}]}, "notes on other images than those of"),
        ({"notes": [{"index": 0, "tags": "blurred", "text": ""}]}, r"is damaged \(notes.0.tags"),
        ({"notes": [{"index": 0, "tags": []}]}, r"is damaged \(notes.0.text is missing"),
        ({"schema_version": 2}, "schema_version 2 is newer than the 1 supported here"),
    ],
)
def test_notes_that_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    audit = audit_of(per_class=20)
    folder = audit.save(tmp_path / "a")
    (folder / "notes.json").write_text(json.dumps({**notes_of(audit), **changes}))
    check_refused(message, cw.view, folder)
    assert not (folder / "view").exists()


def test_folders_and_incomplete_audits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    audit = audit_of(per_class=20)
    audit.save(tmp_path / "a")
    loaded = cw.Audit.load(tmp_path / "a")
    cw.report(loaded, tmp_path / "a/page.html")
    assert "view/index.html" not in (tmp_path / "a/page.html").read_text()
    page = cw.view(tmp_path / "a")
    assert page == tmp_path / "a/view/index.html"
    assert cw.view(tmp_path / "a") == page
    assert 'href="view/index.html' in (tmp_path / "a/page.html").read_text()
    monkeypatch.chdir(tmp_path)
    assert 'href="a/view/index.html"' in loaded._repr_html_()
    assert "view/index.html" not in audit._repr_html_()
    (tmp_path / "notes.txt").write_text("mine")
    check_refused("contains other files; give a new folder", cw.view, audit, tmp_path)
    check_refused("is required for two audits", cw.view, audit)
    check_refused("3 are given; a viewer shows one or two", cw.view, [audit] * 3, tmp_path / "site")
    frame = audit.outcomes.frame
    partial = Outcomes(frame[frame["index"] < 70], dataclasses.replace(audit.outcomes.meta, images=80))
    with pytest.raises(IncompleteError):
        cw.view(cw.Audit(partial), tmp_path / "site")
