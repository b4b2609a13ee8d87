"""The pictures of docs/gallery.md: figures as SVG, pages as seen in Chromium.

python -m tools.gallery                  # draw all of them again
python -m tools.gallery confusion curve  # some
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
import yaml
from PIL import Image
from tests.browser.session import browser
from tools.result_pages import recorded_board
from torch import Tensor, nn

import classwise as cw
from classwise.cli import main as run
from classwise.data import Images

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs" / "images" / "gallery"
RECORDED = ROOT / "docs" / "results"
STUDY = RECORDED / "real-size" / "seed-0"
WIDTH = 1200
"""Width in pixels of the screen on which a page is shown."""


def nearest_mean() -> nn.Module:
    """The nearest-mean classifier of the README."""
    train = cw.load_data("digits", split="train")
    means = torch.stack([train.pixels()[train.y == digit].mean(0).flatten() for digit in range(10)])
    return _linear(2 * means, -means.square().sum(1))


def logistic() -> nn.Module:
    """A logistic regression of digits, after 200 steps from zero."""
    train = cw.load_data("digits", split="train")
    model = _linear(torch.zeros(10, 64), torch.zeros(10))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    for _ in range(200):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(train.pixels()), train.y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return model


def _linear(weight: Tensor, bias: Tensor) -> nn.Module:
    linear = nn.Linear(64, 10)
    linear.load_state_dict({"weight": weight, "bias": bias})
    return nn.Sequential(nn.Flatten(), linear).eval()


def digits() -> tuple[nn.Module, Images]:
    """The nearest-mean classifier, and the test images."""
    return nearest_mean(), cw.load_data("digits", split="test")


def audited() -> cw.Audit:
    """The audit of the README, with its adversarial images."""
    return cw.audit(*digits(), threat="Linf:0.1", save="images")


def audit(folder: Path) -> None:
    """The top of the page of an audit."""
    cw.report(audited(), folder / "page.html")
    picture(folder / "page.html", "audit")


def confusion(folder: Path) -> None:
    """The confusion matrix under every attack."""
    exported(audited(), "confusion-all", "confusion", folder)


def viewer(folder: Path) -> None:
    """The failures of the weakest class in a viewer."""
    cw.view(audited(), folder / "view")
    picture(folder / "view" / "index.html", "viewer", state="group=8&outcome=wrong&sort=margin", ready=".thumb")


def comparison(folder: Path) -> None:
    """Two models by class."""
    audits = {name: cw.Audit.load(STUDY / name / "audits" / "pgd") for name in ("AT", "AT+adjusted")}
    exported(cw.compare(audits), "classes", "comparison", folder)


def curve(folder: Path) -> None:
    """The accuracy of each class at every radius."""
    exported(cw.robustness_curve(*digits(), "Linf", "pgd:steps=20", highest=0.2), "curve", "curve", folder)


def board(folder: Path) -> None:
    """The top of the leaderboard of the results."""
    cw.report(recorded_board(), folder / "index.html")
    picture(folder / "index.html", "board")


def sweep(folder: Path) -> None:
    """The page of two classifiers of digits under two radii."""
    attack = ["pgd:steps=20", "pgd:steps=20,objective=margin"]
    plan = {
        "models": [
            {"name": build.__name__, "model": f"tools.gallery:{build.__name__}"} for build in (nearest_mean, logistic)
        ],
        "data": ["digits"],
        "audits": {
            name: {"attack": attack, "threat": f"Linf:{radius}"} for name, radius in (("small", 0.05), ("large", 0.1))
        },
    }
    (folder / "plan.yaml").write_text(yaml.safe_dump(plan), encoding="utf-8")
    out = str(folder / "digits")
    for words in (["run", str(folder / "plan.yaml"), "--out", out], ["collect", out]):
        if run(["sweep", *words]) != 0:
            raise SystemExit(f"classwise sweep {words[0]} failed")
    picture(folder / "digits" / "results" / "comparison.html", "sweep")


def paper(folder: Path) -> None:
    """The chart of the claims of a paper."""
    cw.papers.write_pages(["kdd21"], RECORDED / "papers", folder)
    picture(folder / "kdd21.html", "paper")


def exported(result: object, figure: str, name: str, folder: Path) -> None:
    """Save one figure of a result, as ``--export svg`` writes it."""
    cw.export(result, folder / "files", ["svg"])  # type: ignore[arg-type]
    (PICTURES / f"{name}.svg").write_bytes((folder / "files" / f"{figure}.svg").read_bytes())


def picture(page: Path, name: str, part: str = "body", state: str = "", ready: str = "body") -> None:
    """Save a screen of a page, from the top of the element ``part``, as WebP, once the element ``ready`` exists."""
    file = page.parent / "screen.png"
    with browser() as opened:
        opened.screen(width=WIDTH)
        opened.send("Emulation.setScrollbarsHidden", hidden=True)
        opened.open(page, state)
        opened.wait(f"document.querySelector('{ready}')")
        opened.run("new Promise((done) => setTimeout(done, 1000))")  # for the images
        opened.run(f"document.querySelector('{part}').scrollIntoView()")
        opened.screenshot(file)
    with Image.open(file) as shown:
        shown.convert("RGB").save(PICTURES / f"{name}.webp", quality=80, method=6)


DRAWN: Mapping[str, Callable[[Path], None]] = {
    function.__name__: function for function in (audit, confusion, viewer, comparison, curve, board, sweep, paper)
}
"""The functions that draw the pictures in a folder of their own, by name."""


def main(names: Sequence[str]) -> None:
    """Draw the named pictures, or all of them."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    for name in names or DRAWN:
        with tempfile.TemporaryDirectory() as folder:
            DRAWN[name](Path(folder))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        prog="python -m tools.gallery", description="Draw the pictures of docs/gallery.md."
    )
    parser.add_argument("names", nargs="*", choices=[[], *DRAWN], metavar="NAME", help="pictures to draw; all of them")
    main(parser.parse_args().names)
