"""Fits of the logit adjustment under several attacks, and what the weakest classes keep under APGD-T.

    python -m benchmarks.adjustment RUN [RUN ...] --classes bird cat deer dog --out DIR

Each run is adjusted under each attack on its validation split. The unadjusted and the adjusted models are audited on
the test images of the classes; all differences are paired by image. Finished files are not computed again.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from benchmarks.tables import table
from classwise.auditing.compare.compare import compare
from classwise.auditing.run.audit import Audit, audit
from classwise.core.files.csv_files import write_csv
from classwise.core.progress.listener import NullProgress
from classwise.data import Images, load_data
from classwise.models import load_model
from classwise.posthoc.logit_adjustment import adjust_logits
from classwise.training.folder import Run

FITS = {
    "ce": "pgd:steps=8,step_size=0.25eps",
    "margin": "pgd:steps=8,step_size=0.25eps,objective=margin",
    "apgd-t": "apgd-t:steps=10,targets=3",
}
"""The attacks that fit the constants."""
PAIRS = (
    *((fit, "none") for fit in FITS),
    ("margin", "ce"),
    ("apgd-t", "ce"),
    ("apgd-t", "margin"),
)
"""Fits that are compared; ``none`` is the model without adjustment."""
ATTACKS = ("pgd:steps=20", "apgd-ce", "apgd-t")
"""The attacks of the audits, as a cascade."""


class Lines(NullProgress):
    """Prints when each attack starts."""

    def start(self, task: str, total: int) -> None:
        """Print the task."""
        print(f"{time.strftime('%H:%M:%S')} {task}: {total:,}", flush=True)


def adjusted(run: Run, which: str, attack: str, out: Path, device: str) -> Path:
    """The adjusted weights; the constants and accuracies of each round go beside them."""
    if not out.exists():
        found = adjust_logits(run, which=which, attack=attack, folds=0, out=out, device=device, progress=Lines())
        write_csv(out.with_suffix(".csv"), found.rounds)
    return out


def audited(weights: Path, data: Images, attacks: Sequence[str], out: Path, device: str, limit: float) -> Audit:
    """The audit of the weights, which the same command continues."""
    model, suite = load_model(str(weights), device=device), list(attacks)
    return audit(
        model, data, "Linf:8/255", suite, out=out, resume=out.is_dir(), guards="off", max_time=limit, progress=Lines()
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Adjust, audit, and print the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.adjustment", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="a run folder")
    parser.add_argument(
        "--fits", nargs="+", choices=list(FITS), default=list(FITS), metavar="FIT", help="[%(default)s]"
    )
    parser.add_argument("--which", default="last", help="the weights of the runs [%(default)s]")
    parser.add_argument("--data", default="cifar10", help="a data set's name or file [%(default)s]")
    parser.add_argument("--classes", nargs="+", required=True, metavar="CLASS", help="names of the classes to attack")
    parser.add_argument("--images", type=int, default=1000, metavar="N", help="of each class [%(default)s]")
    parser.add_argument("--attacks", nargs="+", default=ATTACKS, metavar="ATTACK", help="a cascade [%(default)s]")
    parser.add_argument("--device", default="cpu", help="[%(default)s]")
    parser.add_argument("--max-time", type=float, default=float("inf"), metavar="S", help="of each audit")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args(arguments)
    given.out.mkdir(parents=True, exist_ok=True)
    data = load_data(given.data, split="test")
    labels = [data.class_names.index(name) for name in given.classes]
    data = data.take(
        [row for label in labels for row in (data.y == label).nonzero().flatten()[: given.images].tolist()]
    )
    counts, differences = [], []
    for folder in given.runs:
        run = Run.open(folder)
        weights = {"none": run.weights_file(given.which)}
        for name in given.fits:
            path = given.out / f"{folder.name}-{name}.safetensors"
            weights[name] = adjusted(run, given.which, FITS[name], path, given.device)
        audits = {
            name: audited(path, data, given.attacks, given.out / f"{folder.name}-{name}", given.device, given.max_time)
            for name, path in weights.items()
        }
        for name, result in audits.items():
            for attack in result.names:
                by_class = result.counts(attack)
                counts += [
                    {
                        "run": folder.name,
                        "fit": name,
                        "attack": attack,
                        "class": data.class_names[label],
                        "n": by_class.count[label],
                        "correct": by_class.correct[label],
                    }
                    for label in labels
                ]
        if all(result.complete for result in audits.values()):
            compared = compare(audits)
            for first, second in PAIRS:
                if not {first, second} <= audits.keys():
                    continue
                pair = compared.pair(first, second)
                for what, found in (("these classes", pair.overall), ("worst of them", pair.minima)):
                    ends = {name: 100 * getattr(found, name) for name in ("value", "low", "high")}
                    differences.append({"run": folder.name, "fit": first, "minus": second, "of": what, **ends})
        write_csv(given.out / "counts.csv", pd.DataFrame(counts))
    frame = pd.DataFrame(counts)
    wide = frame.assign(percent=100 * frame["correct"] / frame["n"]).pivot_table(
        index=["run", "fit", "attack"], columns="class", values="percent", sort=False
    )
    show("Correct, percent", wide.reset_index())
    if differences:
        pairs = pd.DataFrame(differences)
        write_csv(given.out / "differences.csv", pairs)
        show("Paired differences, points", pairs)


def show(title: str, frame: pd.DataFrame) -> None:
    """Print a table in Markdown, numbers with one decimal."""
    rows = [[f"{cell:.1f}" if isinstance(cell, float) else str(cell) for cell in row] for row in frame.to_numpy()]
    print(table(title, [str(column) for column in frame.columns], rows))


if __name__ == "__main__":
    main()
