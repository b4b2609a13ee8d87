"""Pages of every kind and viewers in headless Chromium with axe-core; for ``make test-pages``, which names it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import classwise as cw
from classwise.reporting.palette import PALETTE
from classwise.reporting.viewer.data import shown_images
from classwise.reporting.viewer.notes import images_digest

from ..reporting.conftest import audit_of
from ..reporting.sample_pages import NAMES, sample_audit, sample_images, sample_pages
from .chromium import AXE, CHROMIUM, SCREENS, measure
from .session import Page, browser

pytestmark = [
    pytest.mark.skipif(not CHROMIUM, reason="Chromium is not installed"),
    pytest.mark.skipif(not AXE.is_file(), reason="axe-core is not installed; npm installs it in make test-pages"),
]
KINDS = ("audit", "incomplete", "comparison", "bounds", "curve", "worst-class", "plan", "board", "paper", "evidence")
FAULTY = """<!doctype html><html><head><title>faults</title><style>
:root { color-scheme: light dark; --paper: #fff }
</style></head><body><main><h1>Faults</h1><h3>Skipped level</h3><p style="color: #ccc; background: #fff">pale</p>
<svg viewBox="0 0 100 20" width="100" height="20" role="img" aria-label="a drawing">
<text x="80" y="12">clipped</text></svg>
<div style="overflow-x: auto; width: 200px"><div style="width: 900px">wide</div></div>
<p style="width: 1500px">wider than the screen</p></main></body></html>"""
DRAWN = "document.querySelectorAll('.thumb').length"
"""Number of images that a viewer has drawn, in JavaScript."""
DRAW_ALL = "dispatchEvent(new Event('beforeprint'))"
"""Draws the images up to those of a printed page, in JavaScript."""
LEAST_SCALE = 0.85
"""Smallest scale of a drawing; its small print of 10.5 pixels is then 9 pixels high."""


@pytest.fixture(scope="module")
def measured() -> dict[str, dict[str, Any]]:
    return measure({**sample_pages(), "faulty": FAULTY})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("theme", "width"), SCREENS)
def test_a_page_is_accessible_and_fits(measured: dict[str, dict[str, Any]], kind: str, theme: str, width: int) -> None:
    found = measured[f"{kind}, {theme}, {width}"]
    assert "error" not in found
    assert found["violations"] == []
    assert found["clipped"] == []
    assert found["scrollers"] == []
    assert found["overflow"] == 0
    assert [label for scale, label in found["scales"] if scale < LEAST_SCALE] == []
    paper = getattr(PALETTE["paper"], theme)
    assert found["dark"] == f"rgb({', '.join(str(int(paper[at : at + 2], 16)) for at in (1, 3, 5))})"


def test_faults_are_found(measured: dict[str, dict[str, Any]]) -> None:
    found = measured["faulty, light, 390"]
    rules = {violation.partition(":")[0] for violation in found["violations"]}
    assert {"html-has-lang", "heading-order", "color-contrast"} <= rules
    assert found["clipped"][0].startswith("clipped (")
    assert found["scrollers"]
    assert found["overflow"] > 1000


def test_every_kind_of_page_is_checked() -> None:
    assert set(sample_pages()) == set(KINDS)


VIEW_STATES = (
    "",
    "attack=pgd",
    "view=images",
    "group=1&sort=margin",
    "outcome=only&attack=cw",
    "group=0&predicted=1&outcome=wrong",
    "image=61",
)
TWO_STATES = ("", "change=lost&sort=change", "change=gained&group=1", "image=61")


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    with browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("sites")
    (one, images), (other, _) = (sample_images(sample_audit(seed)) for seed in (0, 1))
    return {
        "one": cw.view(one, folder / "one", data=images),
        "two": cw.view({"at": one, NAMES[3]: other}, folder / "two", data=images),
        "placeholders": cw.view(sample_audit(), folder / "placeholders"),
    }


@pytest.mark.parametrize(("theme", "width"), [*SCREENS, ("dark", 390)])
@pytest.mark.parametrize("site", ["one", "two", "placeholders"])
def test_every_state_of_a_viewer_is_accessible_and_fits(
    page: Page, sites: dict[str, Path], site: str, theme: str, width: int
) -> None:
    page.screen(theme, width)
    for state in TWO_STATES if site == "two" else VIEW_STATES:
        page.open(sites[site], state)
        assert page.violations() == [], state
        assert page.overflow() == 0, state
        assert page.run("byId = document.getElementById('image'), byId.scrollWidth <= byId.clientWidth + 1"), state
    assert page.messages == []


def test_viewers_of_groups_and_of_predictions_without_a_clean_pass(page: Page, tmp_path: Path) -> None:
    grouped = cw.Audit(sample_audit().outcomes, group="superclass")
    robust = cw.Outcomes.from_predictions([0, 1, 1], attacks={"pgd": [0, 0, 1]}, class_names=["cat", "dog"])
    page.screen()
    for number, (made, states) in enumerate(
        (
            (grouped, ("", "group=2&sort=margin", "image=61")),
            (cw.Audit(robust), ("", "outcome=only&attack=pgd", "image=1")),
        )
    ):
        site = cw.view(made, tmp_path / str(number))
        for state in states:
            page.open(site, state)
            assert page.violations() == [], state
    assert page.run("document.getElementById('found').textContent") == "3 images"
    assert "First misclassified by pgd, as cat." in page.run("document.getElementById('image').textContent")
    assert page.messages == []


def test_filters_and_keys_of_a_viewer(page: Page, sites: dict[str, Path]) -> None:
    def count() -> int:
        return int(page.run("document.getElementById('found').textContent.split(' ')[0]"))

    page.screen()
    page.open(sites["one"])
    audit = sample_audit()
    weakest = page.run("document.querySelector('.list tbody th').textContent")
    assert weakest == audit.worst_class().name
    page.run("document.querySelector('.list td.names a').click()")
    page.wait("document.querySelector('.thumb')")
    confusion = audit.confusion().loc[weakest].drop(weakest)
    assert count() == confusion.max()
    page.run(
        "const attack = document.querySelector('form').elements.attack; attack.value = 'cw';"
        "attack.dispatchEvent(new Event('change', { bubbles: true }))"
    )
    page.wait("location.hash.includes('attack=cw')")
    page.open(sites["one"], "outcome=only&attack=cw")
    only = ~audit.outcomes.correct("cw") & audit.outcomes.correct("pgd") & audit.outcomes.correct("clean")
    assert count() == only.sum()
    page.open(sites["one"], "view=images")
    assert count() == len(audit.outcomes)
    page.run("document.querySelector('.thumb').focus()")
    for key in ("ArrowRight", "ArrowDown", "ArrowUp", "ArrowRight"):
        page.press(key)
    assert page.run("[...document.querySelectorAll('.thumb')].indexOf(document.activeElement)") == 2
    page.press("Enter")
    page.wait("document.getElementById('image').open")
    first = page.run("location.hash")
    page.press("ArrowRight")
    page.wait(f"location.hash !== '{first}'")
    page.wait("document.getElementById('which').textContent.startsWith('Image 3,')")
    page.press("Escape")
    page.wait("!document.getElementById('image').open && !location.hash.includes('image=')")
    assert page.messages == []


ENTER_NOTE = """(([tags, text]) => {{
  tags.value = {tags!r}; text.value = {text!r};
  for (const field of [tags, text]) field.dispatchEvent(new Event("input", {{ bubbles: true }}));
}})(document.querySelectorAll("dialog input, dialog textarea"))"""
IMPORT_NOTES = """(() => {{
  const [input, held] = [document.querySelector("#notes input"), new DataTransfer()];
  held.items.add(new File([{text!r}], "other.json"));
  input.files = held.files;
  input.dispatchEvent(new Event("change"));
}})()"""


def test_notes_and_tags_of_a_viewer(page: Page, tmp_path: Path) -> None:
    """They are stored by the browser, filtered, exported, read from the audit's folder, and joined with others."""
    audit = cw.Audit.load(sample_audit().save(tmp_path / "a"))
    site, file = cw.view(audit), tmp_path / "a/notes.json"
    status, downloads = "document.querySelector('#notes p').textContent", str(tmp_path / "a")
    page.send("Page.setDownloadBehavior", behavior="allow", downloadPath=downloads)
    for theme, width in [*SCREENS, ("dark", 390)]:
        page.screen(theme, width)
        page.open(site, "group=1&image=61")
        page.run(ENTER_NOTE.format(tags="blurred, <b>, blurred", text="a truck\u202e"))
        assert page.violations() == []
        page.open(site, "group=1")
        thumb = page.run("document.querySelector('.thumb[data-at=\"61\"]').ariaLabel")
        assert thumb.endswith("blurred, <b>, note")
        assert page.violations() == []
        assert page.overflow() == 0
    assert page.run(status).startswith("1 image with notes or tags. Changes of 1 image are only in this browser")
    for state, count in (("noted=with", 1), ("noted=tag+blurred", 1), ("noted=tag+b", len(audit.outcomes))):
        page.open(site, f"{state}&view=images")
        assert page.run("document.getElementById('found').textContent.split(' ')[0]") == str(count)
    page.open(site, f"noted=without&view=images&image={audit.outcomes.index[0]}")
    assert page.run("document.getElementById('found').textContent.split(' ')[0]") == str(len(audit.outcomes) - 1)
    page.run("document.querySelector('dialog textarea').focus()")
    page.press("ArrowRight")
    assert page.run("document.getElementById('which').textContent").startswith(f"Image {audit.outcomes.index[0]},")

    page.run("document.querySelector('#notes [name=export]').click()")
    while not file.is_file():
        page.run("new Promise((done) => setTimeout(done, 20))")
    notes = json.loads(file.read_text(encoding="utf-8"))
    exported = {"index": 61, "name": "", "tags": ["blurred", "<b>"], "text": "a truck⟨U+202E⟩"}
    assert notes == {"schema_version": 1, "images": images_digest(audit.outcomes), "notes": [exported]}
    page.open(cw.view(audit))
    assert page.run(status) == "1 image with notes or tags."

    other = [{"index": 61, "tags": ["dark"], "text": "no truck"}, {"index": 60, "tags": [], "text": "a truck"}]
    page.run(IMPORT_NOTES.format(text=json.dumps({**notes, "notes": other})))
    page.wait(f"{status}.startsWith('2 notes read from other.json. 2 images with notes or tags.')")
    page.open(site, "image=61")
    assert page.run("document.querySelector('dialog textarea').value") == "a truck⟨U+202E⟩\nno truck"
    assert page.run("document.querySelector('dialog input').value") == "blurred, <b>, dark"
    for text, reason in (
        (json.dumps({**notes, "images": "0" * 64}), "it is on other images."),
        (json.dumps({**notes, "schema_version": 9}), "its schema_version is 9, not 1."),
        (json.dumps({**notes, "notes": [{"index": 61, "tags": [3], "text": ""}]}), "it is damaged."),
        (json.dumps({**notes, "notes": None}), "it is damaged."),
        ("{", "it is damaged."),
    ):
        page.run(IMPORT_NOTES.format(text=text))
        page.wait(f"{status}.startsWith('other.json is not read: {reason} 2 images')")
    assert page.messages == []


def test_images_are_beside_their_adversarial_images_and_sorted_by_margins(page: Page, tmp_path: Path) -> None:
    data = cw.load_data("digits", split="test", subset=60)
    means = torch.stack([data.pixels()[data.y == digit].mean(0).flatten() for digit in range(10)])
    linear = torch.nn.Linear(64, 10)
    linear.weight.data, linear.bias.data = 2 * means, -means.square().sum(1)
    model = torch.nn.Sequential(torch.nn.Flatten(), linear)
    audit = cw.audit(model, data, "Linf:0.1", ["fgsm", "pgd:steps=3"], save=("images",), out=tmp_path / "a")
    page.screen()
    site = cw.view(audit, data=data)
    frame, shown = audit.outcomes.frame, "[...document.querySelectorAll('.thumb')].map(({ dataset }) => dataset.at)"
    for state, rows in (
        ("sort=margin", frame["attack"].isin(["clean", "fgsm", "pgd"])),
        ("sort=margin&attack=fgsm", frame["attack"] == "fgsm"),
        ("sort=clean", frame["attack"] == "clean"),
    ):
        page.open(site, f"view=images&{state}")
        page.run(DRAW_ALL)
        lowest = frame[rows].groupby("index")["margin"].min()
        order, _ = shown_images([audit])
        found = lowest[audit.outcomes.index[order[[int(place) for place in page.run(shown)]]]].to_numpy()
        assert (np.diff(found) > -0.01).all(), state  # of margins with two digits
        assert np.ptp(found) > 1
    orders = "[...document.querySelector('form').elements.sort.options].map(({ value }) => value).join()"
    from_margin = "getComputedStyle(document.querySelector('form').elements.low.closest('label')).display"
    assert (page.run(orders), page.run(from_margin)) == (",margin,clean", "grid")
    for attack, sheets in (("clean", 0), ("fgsm", 1), ("all", 1)):
        page.open(site, f"view=images&attack={attack}")
        page.run(DRAW_ALL)
        turned = audit.outcomes.correct("clean") & ~audit.outcomes.correct(attack)
        pairs = (
            "[...document.querySelectorAll('.thumb')].filter((thumb) => thumb.querySelectorAll('.tile').length === 2)"
        )
        assert page.run(f"{pairs}.length") == (turned.sum() if sheets else 0)
        assert page.run("document.querySelectorAll('.pairs').length > 0") == bool(sheets)
        assert page.violations() == []
    page.open(cw.view(sample_audit(), tmp_path / "without-margins"))
    assert (page.run(orders), page.run(from_margin)) == ("", "none")
    assert page.messages == []


def test_names_and_crossings_of_groups(page: Page, tmp_path: Path) -> None:
    """A class and two groupings are filters together; a cell of the table of crossings opens its images."""
    outcomes = sample_audit().outcomes
    rows = np.arange(len(outcomes))
    outcomes = outcomes.add_groups("light", rows % 2, ["dark", "bright"]).add_groups("site", rows % 3, [*"abc"])
    names = {row: f"test/IMG_{row}.jpg" for row in rows}
    outcomes = cw.Outcomes(outcomes.frame.assign(name=outcomes.frame["index"].map(names)), outcomes.meta)
    site = cw.view(cw.Audit(outcomes), tmp_path)
    for theme, width in SCREENS:
        page.screen(theme, width)
        for state in ("", "group=0&g0=1&g1=2", "named=IMG_61", "image=61"):
            page.open(site, state)
            assert page.violations() == [], state
            assert page.overflow() == 0, state
    assert "Image 61, test/IMG_61.jpg" in page.run("document.getElementById('which').textContent")
    page.open(site, "named=img_61")
    assert page.run("document.getElementById('found').textContent") == "1 image"
    page.screen()
    page.open(site, "group=0&g0=1&g1=2")
    member = (outcomes.labels == 0) & (rows % 2 == 1) & (rows % 3 == 2)
    correct = outcomes.correct("all")[member].sum()
    assert f"{correct} of {member.sum()} correct" in page.run("document.getElementById('crossed').textContent")
    page.open(site)
    choices = "[...document.querySelectorAll('.crossing select')]"
    assert page.run(f"{choices}.map((select) => select.selectedOptions[0].textContent).join()") == "class,light"
    page.run(f"{choices}[1].value = 2; {choices}[1].dispatchEvent(new Event('change'))")
    assert page.run("document.querySelector('.crossing').previousSibling.textContent").startswith(
        "Accuracy by class and site"
    )
    page.run("document.querySelector('.crossing ~ .scroll td a').click()")
    page.wait("document.querySelector('.thumb')")
    member = (outcomes.labels == 0) & (rows % 3 == 0)
    assert page.run("document.getElementById('found').textContent") == f"{member.sum()} images"
    assert page.messages == []


def test_a_viewer_of_a_cascade_links_to_the_images_of_each_attack(page: Page, tmp_path: Path) -> None:
    data = cw.load_data("digits", split="test", subset=60)
    means = torch.stack([data.pixels()[data.y == digit].mean(0).flatten() for digit in range(10)])
    linear = torch.nn.Linear(64, 10)
    linear.weight.data, linear.bias.data = 2 * means, -means.square().sum(1)
    attacks = ["fgsm", "pgd:steps=20,objective=margin"]
    audit = cw.audit(torch.nn.Sequential(torch.nn.Flatten(), linear), data, "Linf:0.1", attacks, cascade=True)
    page.screen()
    page.open(cw.view(audit, tmp_path, data=data))
    for before, attack in (("clean", "fgsm"), ("fgsm", "pgd-margin")):
        first = audit.outcomes.correct(before) & ~audit.outcomes.correct(attack)
        assert first.any()
        text = page.run(f"document.querySelector('a[href*=\"attack={attack}&outcome=first\"]').textContent")
        assert text == f"{attack} ({first.sum()})"
    assert page.violations() == page.messages == []


def test_a_page_links_to_the_viewer_beside_it(page: Page, tmp_path: Path) -> None:
    folder = sample_audit().save(tmp_path / "a")
    audit = cw.Audit.load(folder)
    cw.view(audit)
    written = cw.report(audit, folder / "page.html")
    page.screen()
    page.open(written)
    assert page.violations() == []
    label = audit.outcomes.class_names.index("airplane")
    selector = f"svg a[href='view/index.html#attack=all&group={label}&predicted={label + 1}']"
    page.run(f"document.querySelector(\"{selector}\").dispatchEvent(new MouseEvent('click', {{ bubbles: true }}))")
    page.wait("document.getElementById('found')?.textContent")
    count = audit.confusion().loc["airplane"].iloc[label + 1]
    assert page.run("document.getElementById('found').textContent") == f"{count} images"


def test_hostile_names_do_nothing_in_a_viewer(page: Page, tmp_path: Path) -> None:
    script = "</script><script>alert(1)</script>"
    names = ("<img src=x onerror=alert(1)>", script, "__proto__", "constructor", "a\u202eb")
    audit = audit_of(5, 6, names, meta={"model": "<svg onload=alert(1)>"})
    site = cw.view({"<script>alert(2)</script>": audit, "&b": audit_of(5, 6, names, seed=1)}, tmp_path)
    page.screen()
    wrong = "attack=%3Cscript%3E&group=x&image=y&low=z"
    for state in ("", "group=0", "group=2&predicted=3", "image=3", wrong, "sort=__proto__&outcome=constructor"):
        page.open(site, state)
        assert page.run("document.querySelectorAll('img, main script, main svg').length") == 0
        assert "alert(2)" in page.run("document.body.innerText")
    assert page.messages == []


def test_a_viewer_prints(page: Page, sites: dict[str, Path]) -> None:
    page.screen(media="print")
    page.open(sites["one"], "group=1")
    page.run(DRAW_ALL)
    assert page.run("getComputedStyle(document.querySelector('.controls')).display") == "none"
    assert page.run("document.querySelectorAll('.thumb').length") == 60
    assert page.overflow() == 0


def test_a_viewer_of_ten_thousand_images(page: Page, tmp_path: Path) -> None:
    """It has a limited size, and draws few images when it opens and few more for each step of a scroll."""
    generator = torch.Generator().manual_seed(0)
    smooth = torch.nn.functional.interpolate(torch.rand(10_000, 3, 6, 6, generator=generator), 32, mode="bilinear")
    noisy = (smooth + 0.05 * torch.randn(10_000, 3, 32, 32, generator=generator)).clamp(0, 1)
    audit, images = sample_images(audit_of(10, 1000), noisy)
    site = cw.view(audit, tmp_path, data=images)
    assert sum(file.stat().st_size for file in tmp_path.rglob("*") if file.is_file()) < 25e6
    page.screen()
    page.open(site, "view=images&sort=margin")
    page.wait(DRAWN)
    drawn, frames = [page.run(DRAWN)], "requestAnimationFrame(() => requestAnimationFrame(done))"
    for _ in range(40):
        page.run(f"new Promise((done) => {{ scrollBy(0, 700); {frames}; }})")
        drawn.append(page.run(DRAWN))
    assert 0 < drawn[0] < 200
    assert max(np.diff(drawn)) < 200
    assert drawn[-1] > 1000
