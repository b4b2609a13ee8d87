"""A page of each kind, with class names that are long or of other scripts."""

from __future__ import annotations

import dataclasses
import functools
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from classwise.auditing.compare.compare import compare
from classwise.auditing.curve.result import Curve
from classwise.auditing.guards.report import AuditWarning
from classwise.auditing.outcomes.artifacts import Artifacts
from classwise.auditing.outcomes.meta import Meta
from classwise.auditing.outcomes.table import Outcomes
from classwise.auditing.power_plan import plan
from classwise.auditing.run.result import Audit
from classwise.data.images import Images
from classwise.papers.page import write_pages
from classwise.reporting import report
from classwise.reporting.board.board import board
from classwise.reporting.board.result import Board
from classwise.reporting.evidence.build import evidence
from classwise.training.folder import Run
from classwise.training.recipe import Recipe
from tests.auditing.test_criteria import written as written_policy

from .conftest import audit_of
from .test_worst_class import result_of

NAMES = (
    "airplane",
    "a class whose name has forty characters.",
    "MWWM Wide Capital Letters MWWM MWWM MWWM",
    "قطة منزلية ذات اسم طويل جدا جدا جدا",
    "一个名字很长很长很长很长很长很长很长很长的类别猫猫猫猫猫猫猫猫猫猫",
    "dog",
    "frog",
    "n01440764_Tinca_tinca-freshwater_fish_42",
    "ship",
    "truck",
)
SUPERCLASSES = {"superclasses": (0, 1, 1, 2, 2, 2, 2, 1, 0, 0), "superclass_names": ("vehicles", "things", "animals")}
COMMITTED = Path(__file__).parents[2] / "docs/results/papers"


def sample_audit(seed: int = 0) -> Audit:
    """An audit of ten classes with a warning, superclasses and saved examples."""
    warning = AuditWarning("zero-gradients", "Half of the gradients are zero.", 0.5)
    plain = audit_of(10, 60, NAMES, seed=seed, meta=SUPERCLASSES, warnings=(warning,))
    artifacts, generator = Artifacts(), np.random.default_rng(0)
    worst = plain.outcomes.frame.query("label == @label", local_dict={"label": _worst(plain)})["index"].unique()[:4]
    clean = generator.random((4, 3, 8, 8)).astype(np.float16)
    artifacts.add("examples", "pgd", worst, np.stack([clean, np.clip(clean + np.float16(0.03), 0, 1)], axis=1))
    return Audit(plain.outcomes, warnings=plain.warnings, artifacts=artifacts)


def sample_images(audit: Audit, pixels: torch.Tensor | None = None) -> tuple[Audit, Images]:
    """The audit as one of given pixels, or of noise, and the images; every second one has a saved image of pgd."""
    outcomes = audit.outcomes
    if pixels is None:
        pixels = torch.rand(len(outcomes), 3, 8, 8, generator=torch.Generator().manual_seed(0))
    stored = (255 * pixels).to(torch.uint8)
    images = Images(stored, outcomes.labels, class_names=outcomes.class_names, name="noise")
    meta = dataclasses.replace(outcomes.meta, data_hash=images.fingerprint())
    artifacts = Artifacts()
    artifacts.add("images", "pgd", outcomes.index[::2], (images.pixels()[::2] * 0.9).numpy())
    return Audit(Outcomes(outcomes.frame, meta), warnings=audit.warnings, artifacts=artifacts), images


def _worst(audit: Audit) -> int:
    return audit.outcomes.class_names.index(audit.worst_class().name)


def sample_run(folder: Path, names: tuple[str, ...] = NAMES, epochs: int = 30, selected: int = 20) -> Run:
    """A training run with validation, averaged weights from the second epoch on, and a per-class radius."""
    folder.mkdir()
    (folder / "recipe.yaml").write_text(Recipe.read("cfa-at", budget="short").yaml(), encoding="utf-8")
    rows = [
        {
            "epoch": epoch,
            "split": split,
            "class": name,
            "label": label,
            "count": 50,
            "clean": 0.8,
            "robust": (0.2 + 0.02 * epoch * (30 / epochs)) * (label + 3) / (len(names) + 2),
            "epsilon": (8 + label) / 255 if split == "train" else None,
        }
        for split in ("train", "valid", "valid-average")
        for epoch in range(1 if split == "valid-average" else 0, epochs)
        for label, name in enumerate(names)
    ]
    pd.DataFrame(rows).to_parquet(folder / "epochs.parquet")
    event = {"event": "selected", "epoch": selected, "which": "best"}
    (folder / "events.jsonl").write_text(json.dumps(event) + "\n", encoding="utf-8")
    return Run(folder)


def sample_curve() -> Curve:
    """A robustness curve of ten classes."""
    generator = np.random.default_rng(0)
    label = np.repeat(np.arange(10), 40)
    low = generator.uniform(0, 0.02, 400) * (1 + label / 5)
    frame = pd.DataFrame({"index": range(400), "label": label, "low": low, "high": low + 0.002})
    frame = frame.assign(first_success="pgd", probes=5, forwards=50, backwards=50)
    meta = Meta(class_names=NAMES, attacks={"clean": None}, norm="Linf", data="toy", split="test", model="tiny")
    return Curve(frame, meta, 16 / 255, 5)


def sample_board(methods: Mapping[str, Audit]) -> Board:
    """A leaderboard of different models."""
    audits = []
    for name, audit in methods.items():
        meta = dataclasses.replace(audit.outcomes.meta, model_hash=name.encode().hex())
        audits.append(Audit(Outcomes(audit.outcomes.frame, meta), name=name, warnings=audit.warnings))
    return board(audits)


def sample_evidence(folder: Path) -> Path:
    """The page of evidence on an audit with warnings and on an incomplete one."""
    audit = sample_audit()
    meta = dataclasses.replace(audit.outcomes.meta, threat="Linf:0.1")
    frame = audit.outcomes.frame
    partial = frame[(frame["attack"] != "cw") | (frame["index"] % 3 > 0)]
    audits = [
        Audit(Outcomes(rows, meta), name=name, warnings=audit.warnings).save(folder / name)
        for name, rows in {"whole": frame, "partial": partial}.items()
    ]
    policy = written_policy(
        folder / "policy.yaml", fail_if=["worst(all) < 0.1", "n01440764_Tinca_tinca-freshwater_fish_42(all).low < 0.3"]
    )
    return evidence(audits, policy, folder / "evidence").page


@functools.cache
def sample_pages() -> dict[str, str]:
    """The HTML of a page of each kind, by name."""
    audit = sample_audit()
    outcomes = audit.outcomes
    partial = outcomes.frame[~((outcomes.frame["attack"] == "cw") & (outcomes.frame["index"] % 3 == 0))]
    incomplete = Audit(Outcomes(partial, outcomes.meta), warnings=audit.warnings)
    bounds = compare({"at": incomplete, "cfa": incomplete}, allow_incomplete=True)
    methods = {name: sample_audit(seed) for seed, name in enumerate(("at", NAMES[1], NAMES[3]))}
    estimates = np.linspace(0.1, 0.8, len(NAMES)).tolist()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        written = {
            "audit": report(audit, folder / "audit.html", run=sample_run(folder / "run")),
            "incomplete": report(incomplete, folder / "incomplete.html"),
            "comparison": report(compare(methods), folder / "comparison.html"),
            "bounds": report(bounds, folder / "bounds.html"),
            "curve": report(sample_curve(), folder / "curve.html"),
            "worst-class": report(result_of(NAMES, estimates, {0, 1}), folder / "worst.html"),
            "plan": report(plan(accuracy=[0.3, 0.6], above=0.2, identity=True, repetitions=20), folder / "plan.html"),
            "board": report(sample_board(methods), folder / "board.html"),
            "paper": write_pages(["cfa23"], COMMITTED, folder)[0],
            "evidence": sample_evidence(folder),
        }
        return {kind: path.read_text(encoding="utf-8") for kind, path in written.items()}
