"""What binds a report: requirements of the policy, and the comparison with the model, the images and a repetition."""

from __future__ import annotations

import dataclasses
import datetime as dt
import hashlib
import html
import json
import math
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import classwise as cw
from classwise.auditing.criteria.policy import OPTIONS, Policy
from classwise.auditing.guards.budget import GUARDS
from classwise.auditing.outcomes import files as outcome_files
from classwise.auditing.run.corruptions import audit_corruptions
from classwise.auditing.run.requirements import lacking
from classwise.data.stream import Stream
from classwise.reporting.evidence import build, page, repetition
from classwise.stats.counts import ClassCounts
from classwise.stats.intervals import class_intervals
from tests.auditing.test_criteria import POLICY, written
from tests.refusals import check_refused

RADIUS = "Linf:0.1"
ATTACK = "pgd:steps=5"


class Net(nn.Sequential):
    """A linear classifier of 4 x 4 images, which predicts both classes."""

    def __init__(self, seed: int = 0) -> None:
        torch.manual_seed(seed)
        linear = nn.Linear(16, 2, bias=False)
        linear.weight.data -= linear.weight.data.mean(1, keepdim=True)
        super().__init__(nn.Flatten(), linear)


def images(seed: int = 0) -> cw.Images:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(256, (60, 1, 4, 4), generator=generator, dtype=torch.uint8)
    return cw.Images(x, torch.arange(60) % 2, split="test")


def policy_file(path: Path, **changes: Any) -> Path:
    data = POLICY["data"] | {"split": "test", "digest": images().fingerprint(), "images": 60, "images_per_class": 30}
    stated = {"attacks": [ATTACK], "data": data, "guards": ["class-order"], "fail_if": ["overall(all) < 0.01"]}
    return written(path, **(stated | changes))


def audited(out: Path, policy: Path | None = None, **options: Any) -> Path:
    defaults: dict[str, Any] = {"attacks": [ATTACK], "model": Net(), "data": images(), "precision": "float32"}
    options = defaults | options
    model, data = options.pop("model"), options.pop("data")
    cw.audit(model, data, RADIUS, out=out, policy=policy, **options)
    return out


def reported(folder: Path, **options: Any) -> build.Evidence:
    policy = policy_file(folder / "policy.yaml")
    return cw.evidence(audited(folder / "a", policy, **options), policy, folder / "evidence")


WEAKER: dict[str, dict[str, Any]] = {
    "not run: pgd:steps=5": {"attacks": ["pgd:steps=4"]},
    "not run: pgd:steps=5,": {"attacks": ["square:steps=2"]},
    "step_size=0.25eps": {"attacks": ["pgd:steps=5,step_size=0.01eps"]},
    "The guards are off": {"guards": "off"},
    "must be float32": {"precision": "bfloat16"},
    "Early stop: ": {"early_stop": False},
    "Grid: 8bit; required: none": {"grid": "8bit"},
    "images have the SHA-256": {"data": images(seed=1)},
    "There are 59 images": {"data": images().take(range(59))},
    "class 1 has 29 images": {"data": images().take(range(59))},
    "split is valid": {"data": dataclasses.replace(images(), split="valid")},
}


@pytest.mark.parametrize("sentence", WEAKER)
def test_a_weaker_audit_is_refused_with_the_policy_and_does_not_pass_without(sentence: str, tmp_path: Path) -> None:
    policy = policy_file(tmp_path / "policy.yaml")
    with pytest.raises(cw.ClasswiseError, match=rf"not as the policy .* requires: .*{re.escape(sentence)}"):
        audited(tmp_path / "a", policy, **WEAKER[sentence])
    assert not (tmp_path / "a").exists()
    report = cw.evidence(audited(tmp_path / "b", **WEAKER[sentence]), policy, tmp_path / "evidence")
    found = " ".join(report.facts["audits"][0]["not_as_required"])
    assert report.verdict == "not as required"
    assert sentence.replace("The guards are off", "Guards did not run: class-order") in found
    assert "not as the policy requires" in report.page.read_text()


def test_stronger_attacks_pass(tmp_path: Path) -> None:
    policy = policy_file(tmp_path / "policy.yaml")
    audit = audited(tmp_path / "a", policy, attacks=["fgsm", "pgd:steps=6,restarts=2"])
    report = cw.evidence(audit, policy, tmp_path / "evidence")
    assert report.verdict == "passed", report.facts["audits"][0]["not_as_required"]


def test_a_suite_requires_each_of_its_attacks(tmp_path: Path) -> None:
    policy = Policy.read(policy_file(tmp_path / "policy.yaml", attacks=["autoattack"]))
    meta = cw.Audit.load(audited(tmp_path / "a", attacks=["apgd-ce", "pgd"])).outcomes.meta
    found = [line.split(":")[1].strip() for line in lacking(policy, meta, None)]
    assert found == ["apgd-t", "fab-t", "square"]


def test_an_option_may_be_required(tmp_path: Path) -> None:
    policy = policy_file(tmp_path / "policy.yaml", options={"grid": "8bit"})
    check_refused("Grid: none; required: 8bit", audited, tmp_path / "a", policy)
    report = cw.evidence(audited(tmp_path / "b", policy, grid="8bit"), policy, tmp_path / "evidence")
    assert report.verdict == "passed"
    assert set(OPTIONS) == {"early_stop", "repeats", "repeat_rule", "grid"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"guards": ["clas-order"]}, "unknown guard 'clas-order'; did you mean 'class-order'"),
        ({"attacks": ["pdg"]}, "unknown attack 'pdg'"),
        ({"options": {"seed": 3}}, "unknown option 'seed'"),
        ({"precision": "float16"}, "precision"),
        ({"data": POLICY["data"] | {"digest": "abc"}}, "data.digest"),
        ({"validity": {"until": "soon", "retest_if": ["x"]}}, "validity.until"),
        ({"fail_if": ["overall(clean) < 0"]}, "is true for no model"),
        ({"fail_if": ["worst(all).low > 100%"]}, "is true for no model"),
        ({"fail_if": ["'1'(all).low < 0.9"]}, "at least 36 are required in place of"),
        ({"fail_if": ["worst(all).low < 0.9"]}, "fails even if all are correct"),
    ],
)
def test_policies_that_no_audit_of_these_images_passes_are_refused(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    check_refused(message, audited, tmp_path / "a", policy_file(tmp_path / "policy.yaml", **changes))


def test_the_policy_states_the_threat_and_the_attacks_of_an_audit(tmp_path: Path) -> None:
    policy = policy_file(tmp_path / "policy.yaml", attacks=["fgsm", "pgd:steps=3"])
    audit = cw.audit(Net(), images(), policy=policy, precision="float32", out=tmp_path / "a")
    meta = audit.outcomes.meta
    assert (meta.threat, [*meta.attacks]) == (RADIUS, ["clean", "fgsm", "pgd"])
    assert cw.evidence(tmp_path / "a", policy, tmp_path / "evidence").verdict == "passed"


def test_every_guard_runs_for_a_policy(tmp_path: Path) -> None:
    policy = policy_file(tmp_path / "policy.yaml", guards="default")
    report = cw.Audit.load(audited(tmp_path / "a", policy)).guards
    assert report is not None
    assert report.not_run == ()


def test_a_warning_of_a_named_guard_forbids_a_pass(tmp_path: Path) -> None:
    worse = dataclasses.replace(images(), y=1 - Net()(images().pixels()).argmax(1))  # below chance
    data = POLICY["data"] | {"split": "any", "digest": "any"}
    for name, verdict in (("class-order", "not as required"), ("duplicates", "passed")):
        policy = policy_file(tmp_path / f"{name}.yaml", guards=[name], data=data, fail_if=["overall(all) > 0.99"])
        report = cw.evidence(audited(tmp_path / name / "a", policy, data=worse), policy, tmp_path / name / "evidence")
        assert "class-order" in {
            row["name"] for row in report.facts["audits"][0]["guards"] if row["result"] == "warning"
        }
        assert report.verdict == verdict
        page = (tmp_path / name / "evidence" / "evidence.html").read_text(encoding="utf-8")
        assert ("class-order (not required by the policy)" in page) == (name != "class-order")


def test_default_guards_exist_and_are_extended_by_a_list(tmp_path: Path) -> None:
    from classwise.auditing.criteria.policy import DEFAULT_GUARDS, Policy

    assert set(DEFAULT_GUARDS) <= set(GUARDS)
    for guards, required in (
        ("default", DEFAULT_GUARDS),
        (["default"], DEFAULT_GUARDS),
        (["logit-range", "default", "class-order"], ("logit-range", *DEFAULT_GUARDS)),
        (["logit-range"], ("logit-range",)),
    ):
        assert Policy.read(policy_file(tmp_path / "policy.yaml", guards=guards)).required_guards == required


def test_an_expired_policy_is_no_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    today = dt.datetime.now(dt.UTC).date()
    validity = {"until": today.isoformat(), "retest_if": ["new weights"]}
    policy = policy_file(tmp_path / "policy.yaml", validity=validity)
    report = cw.evidence(audited(tmp_path / "a", policy), policy, tmp_path / "evidence")
    assert report.verdict == "passed"
    old = policy_file(tmp_path / "old.yaml", validity=validity | {"until": (today - dt.timedelta(1)).isoformat()})
    expired = cw.evidence(tmp_path / "a", old, tmp_path / "expired")
    assert expired.verdict == "not as required"
    assert "was valid until" in expired.facts["audits"][0]["not_as_required"][0]
    check_refused("was valid until", audited, tmp_path / "late", old)

    monkeypatch.setattr(build, "_now", lambda: dt.datetime.combine(today + dt.timedelta(1), dt.time(), dt.UTC))
    assert any("was valid until" in line for line in build.verify(report.folder).differences)


def test_other_audits_with_the_policy_are_listed_and_verified(tmp_path: Path) -> None:
    policy = policy_file(tmp_path / "policy.yaml")
    names = ("a", "b", "stopped")
    for name in names:
        audited(tmp_path / name, policy, **({"max_time": 1e-9} if name == "stopped" else {"seed": len(name)}))
    audited(tmp_path / "c")  # without the policy
    report = cw.evidence(tmp_path / "a", policy, tmp_path / "evidence")
    others = {row["name"]: row for row in report.facts["audits"][0]["others"]}
    results = {"b": "passed", "c": "without a record of this policy", "stopped": "undecided"}
    assert {name: row["result"] for name, row in others.items()} == results
    for name in ("b", "c"):
        by_attack = cw.Audit.load(tmp_path / name).by_attack.loc["all"]
        shown = {"overall": others[name]["overall"], "worst": others[name]["worst"]}
        assert shown == pytest.approx({key: by_attack[key] for key in shown})
        assert f"robust overall {100 * by_attack['overall']:.1f}" in report.page.read_text()
    assert others["stopped"]["overall"] is None
    assert build.verify(report.folder).differences == []
    shutil.rmtree(tmp_path / "b")
    assert build.verify(report.folder).differences == [], "an auditor need not have it"
    shutil.rmtree(tmp_path / "c")
    hidden = cw.evidence(tmp_path / "a", policy, tmp_path / "hidden")
    audited(tmp_path / "b", policy)
    about = json.loads((tmp_path / "b" / "audit.json").read_text())
    about["environment"]["date"] = "2001-01-01T00:00:00+00:00"
    (tmp_path / "b" / "audit.json").write_text(json.dumps(about))
    (tmp_path / "b" / "checksums.txt").unlink()
    assert any("b is beside" in line for line in build.verify(hidden.folder).differences)


def test_criteria_on_estimates_are_marked(tmp_path: Path) -> None:
    policy = policy_file(tmp_path / "policy.yaml", fail_if=["overall(all) < 0.01", "overall(all).low < 0.001"])
    report = cw.evidence(audited(tmp_path / "a", policy), policy, tmp_path / "evidence")
    rows = report.facts["audits"][0]["criteria"]
    assert [row["on_estimate"] for row in rows] == [True, False]
    assert [row["at_end"] for row in rows] == ["passed", "passed"]
    text = report.page.read_text().partition("<h2>Acceptance criteria</h2>")[2].partition("</section>")[0]
    assert len(re.findall(r"at the lower end, [\d.]+ %, of its own interval it passes, too", text)) == 1
    assert len(re.findall(r"%, at the lower end, [\d.]+ %, of its own interval; required: at least 0.1 %", text)) == 1
    assert "\N{EN DASH}" not in text, "intervals are in the table of accuracies only"
    assert all(row["low"] is not None and row["high"] is not None for row in rows)


def test_the_page_says_where_only_the_measured_value_passes(tmp_path: Path) -> None:
    audit = audited(tmp_path / "a")
    counts = cw.Audit.load(audit).counts("all")
    limit = int(counts.correct.sum()) - 1
    policy = policy_file(tmp_path / "policy.yaml", fail_if=[f"overall(all) < {limit}/60"])
    report = cw.evidence(audit, policy, tmp_path / "evidence")
    (criterion,) = report.facts["audits"][0]["criteria"]
    assert (criterion["status"], criterion["at_end"]) == ("passed", "failed")
    text = report.page.read_text()
    assert re.search(r"measured value; at the lower end, [\d.]+ %, of its own interval it fails", text)


def test_the_end_of_a_criterion_is_that_of_its_comparison_whatever_the_class_is_called() -> None:
    criterion: Any = {"fails_if": "'a < b'(all) > 0.5", "low": 0.25, "high": 0.75}
    assert page._end(criterion) == "upper end, 75.0 %,"
    assert page._end(criterion | {"fails_if": "'a > b'(all) < 0.5"}) == "lower end, 25.0 %,"


def test_a_repetition_in_another_folder_passes(tmp_path: Path) -> None:
    report = reported(tmp_path)
    again = audited(tmp_path / "elsewhere" / "again", tmp_path / "policy.yaml")
    assert (again / "audit.json").read_bytes() != (tmp_path / "a" / "audit.json").read_bytes()
    found = build.verify(report.folder, [again])
    assert found.differences == []
    assert any("is a repetition" in note for note in found.notes)
    beside = audited(tmp_path / "again", tmp_path / "policy.yaml")
    assert build.verify(report.folder, [beside]).differences == []  # the report's own audit, beside it, is not unlisted
    other = audited(tmp_path / "elsewhere" / "other", tmp_path / "policy.yaml", seed=5)
    assert build.verify(report.folder, [other]).differences


def _dated(folder: Path) -> None:
    file = folder / "a" / "audit.json"
    file.write_text(re.sub(r'"date": "\d{4}', '"date": "2001', file.read_text()))
    (folder / "a" / "checksums.txt").unlink()


def _forged(folder: Path) -> None:
    """All outcomes become correct, and all digests are computed again."""
    part = folder / "a" / "outcomes" / "part-00000.parquet"
    frame, meta = outcome_files.read(part)
    frame = frame.assign(correct=True, prediction=frame["label"])
    (folder / "a" / "outcomes" / "checksums.txt").unlink()
    outcome_files.write(part, frame, meta)
    shutil.rmtree(folder / "evidence")
    cw.evidence(folder / "a", folder / "policy.yaml", folder / "evidence")


class Code(Net):
    """Other code with the same weights."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self[1](self[0](x))
        return logits


def _without_warnings(folder: Path) -> None:
    """A policy that the audit did not meet, and an audit whose warnings were removed."""
    file = folder / "a" / "audit.json"
    about = json.loads(file.read_text())
    assert about["warnings"]
    file.write_text(json.dumps(about | {"warnings": []}))
    (folder / "a" / "checksums.txt").unlink()
    shutil.rmtree(folder / "evidence")
    cw.evidence(folder / "a", folder / "policy.yaml", folder / "evidence")


TAMPERED: dict[str, tuple[Callable[[Path], dict[str, Any] | None], str]] = {
    "old dates": (_dated, "differs from its SHA-256"),
    "forged outcomes": (_forged, "outcomes of 60 images differ"),
    "removed warnings": (_without_warnings, "guards that warn only now: train"),
    "other weights": (lambda _: {"model": Net(seed=1)}, "the weights, their names or the settings of the model differ"),
    "other structure": (lambda _: {"model": nn.Sequential(*Net(), nn.Softplus())}, "the code of the model differs"),
    "other code": (lambda _: {"model": Code()}, "the code of the model differs"),
    "other images": (lambda _: {"images": images(seed=2)}, "the images have the SHA-256"),
    "cut folder": (lambda folder: (folder / "a" / "outcomes" / "part-00000.parquet").unlink(), "is missing"),
}


@pytest.mark.parametrize("kind", TAMPERED)
def test_tampering_is_found(kind: str, tmp_path: Path) -> None:
    report = reported(tmp_path)
    given: dict[str, Any] = {"model": Net(), "images": images(), "rerun": "all"}
    honest = build.verify(report.folder, **given)
    assert honest.differences == []
    assert any("0 of 120 outcomes of 60 images differ" in note for note in honest.notes)
    change, message = TAMPERED[kind]
    changed = change(tmp_path) or {}
    assert any(message in line for line in build.verify(report.folder, **(given | changed)).differences)


def test_a_difference_that_a_setting_explains_names_it(tmp_path: Path) -> None:
    """A forgotten normalisation is not other weights, and part of the images is not other images."""
    file = tmp_path / "net.pt"
    torch.save(Net().state_dict(), file)

    def loaded(seed: int = 0, **options: Any) -> nn.Module:
        torch.save(Net(seed).state_dict(), file)
        found = cw.load_model(Net(1), weights=file, **options)
        assert isinstance(found, nn.Module)
        return found

    scale: dict[str, Any] = {"mean": [0.43], "std": [0.12]}
    report = reported(tmp_path, model=loaded(**scale))
    assert build.verify(report.folder, model=loaded(**scale), images=images()).differences == []
    (line,) = build.verify(report.folder, model=loaded()).differences
    assert line.startswith(f"{tmp_path / 'a'}: the model, with its normalisation, has the SHA-256 ")
    stated = "the audit has a normalisation with mean 0.43 and std 0.12, and this model has no normalisation layer"
    assert line.endswith(f"{stated} (--mean, --std)")
    (line,) = build.verify(report.folder, model=loaded(mean=[0.43], std=[0.13])).differences
    assert line.endswith("std 0.12, and this model has a normalisation with mean 0.43 and std 0.13 (--mean, --std)")
    (line,) = build.verify(report.folder, model=loaded(seed=2, **scale)).differences
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    assert f"the file of weights has the SHA-256 {digest}, and that of the audit " in line
    assert len(build.verify(report.folder, model=loaded(seed=2)).differences) == 2
    for other, why in (
        (images().take(range(59)), "these are 59 images, and the audit has 60 (--subset, --split)"),
        (dataclasses.replace(images(1), split="valid"), "the split is valid, and that of the audit test (--split)"),
        (images(1), "another setting of --data-set, such as size=64"),
        (dataclasses.replace(images(1), class_names=("b", "a")), "their order, differ (--data-set classes=...)"),
    ):
        (line,) = build.verify(report.folder, images=other).differences
        assert line.endswith(why)


def test_a_verification_names_the_verdict(tmp_path: Path) -> None:
    for name, condition in (("passed", "overall(all) < 0.01"), ("failed", "overall(all) < 1")):
        policy = policy_file(tmp_path / f"{name}.yaml", fail_if=[condition])
        report = cw.evidence(audited(tmp_path / name / "a", policy), policy, tmp_path / f"{name}-evidence")
        found = build.verify(report.folder)
        assert not found.differences
        assert found.notes[0].startswith(f"the verdict of the report is: {name}. Criteria ")


def test_an_audit_that_is_not_as_required_passes_no_criterion(tmp_path: Path) -> None:
    criteria = ["overall(all) < 0.01", "overall(clean) < 1"]
    policy = policy_file(tmp_path / "policy.yaml", fail_if=criteria, attacks=["pgd:steps=6"])
    report = cw.evidence(audited(tmp_path / "a"), policy, tmp_path / "evidence", card=True)
    (about,) = report.facts["audits"]
    assert [row["status"] for row in about["criteria"]] == ["undecided", "failed"]
    assert [row["at_end"] for row in about["criteria"]] == ["undecided", "failed"]
    assert about["criteria"][0]["detail"].endswith("; it would pass if the audit were as the policy requires")
    for text in (report.page.read_text(), (report.folder / "README.md").read_text()):
        assert "it would pass if the audit were as the policy requires" in text
        assert "it passes, too" not in text


def test_a_sample_is_attacked_again_in_any_order(tmp_path: Path) -> None:
    report = reported(tmp_path, batch_size=32)
    found = build.verify(report.folder, model=Net(), images=images(), rerun=7, seed=3)
    assert found.differences == []
    (note,) = [note for note in found.notes if "(seed 3)" in note]
    assert "0 of 14 outcomes of 7 images differ from those of a repetition; none may on this machine" in note
    total = len(images())
    changed = next(m for m in range(1, total) if math.comb(total - m, 7) <= 0.05 * math.comb(total, 7))
    assert f"if the outcomes of {changed} of all {total} images were changed, such a sample" in note
    assert "guards are repeated with all images only" in note
    seeds = {note.rpartition("(seed")[2] for _ in range(2) for note in
             build.verify(report.folder, model=Net(), images=images(), rerun=2).notes if "seed" in note}  # fmt: skip
    assert len(seeds) == 2
    with pytest.raises(cw.ClasswiseError, match="needs the model and the images"):
        build.verify(report.folder, rerun=7)


def test_rows_without_a_prediction_are_repeated(tmp_path: Path) -> None:
    model = Net()
    next(model.parameters()).data[0, 0] = float("nan")
    audit = cw.Audit.load(audited(tmp_path / "a", model=model, attacks=["square:steps=2"]))
    assert audit.outcomes.frame["prediction"].isna().any()
    assert repetition.repeat(audit, model, images(), None, 0).differing == 0


def test_on_another_machine_one_percent_may_differ() -> None:
    assert repetition.Repetition(1000, 2000, 20, exact=False, available=5000).allowed == 20
    assert repetition.Repetition(10, 20, 0, exact=False, available=50).allowed == 1
    assert repetition.Repetition(1000, 2000, 0, exact=True, available=5000).allowed == 0


@pytest.mark.parametrize(("images", "available", "changed"), [(220, 240, 2), (100, 240, 6), (100, 10**6, 29512)])
def test_the_number_of_changes_that_a_sample_detects_is_that_of_sampling_without_replacement(
    images: int, available: int, changed: int
) -> None:
    """Of many images it is the share 1 - 0.05^(1/n)."""
    assert repetition.Repetition(images, images, 0, exact=True, available=available).detectable == changed
    missed = [math.prod((available - m - i) / (available - i) for i in range(images)) for m in (changed - 1, changed)]
    assert missed[0] > 0.05 >= missed[1]


def test_reports_of_several_models_are_compared_with_the_one_of_the_same_weights(tmp_path: Path) -> None:
    policy = policy_file(tmp_path / "policy.yaml")
    audits = [audited(tmp_path / str(seed) / "a", policy, model=Net(seed)) for seed in (0, 1)]
    report = cw.evidence(audits, policy, tmp_path / "evidence")
    found = build.verify(report.folder, model=Net(1), images=images(), rerun=5)
    assert found.differences == []
    (note,) = [note for note in found.notes if "the model and the images match those of the audit" in note]
    assert note.startswith(f"{tmp_path / '1' / 'a'}: ")
    assert build.verify(report.folder, model=Net(2)).differences


def test_signatures_beside_the_manifest_are_named(tmp_path: Path) -> None:
    report = reported(tmp_path)
    assert any("no signature" in note for note in build.verify(report.folder).notes)
    (report.folder / "manifest.json.sig").write_text("")
    (note,) = [note for note in build.verify(report.folder).notes if "manifest.json.sig" in note]
    assert "classwise does not check it: ssh-keygen -Y verify" in note


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="ssh-keygen is not installed")
def test_a_signature_of_ssh_keygen_is_checked_by_the_command_that_verify_names(tmp_path: Path) -> None:
    report = reported(tmp_path)
    manifest = report.folder / "manifest.json"

    def run(command: str, **options: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            shlex.split(command), capture_output=True, text=True, check=False, cwd=tmp_path, **options
        )

    run("ssh-keygen -q -t ed25519 -N '' -f key").check_returncode()
    run(f"ssh-keygen -Y sign -f key -n file {manifest}").check_returncode()
    kind, key, *_ = (tmp_path / "key.pub").read_text().split()
    (tmp_path / "signers").write_text(f"auditor@example.org {kind} {key}\n")
    (note,) = [note for note in build.verify(report.folder).notes if ".sig is beside" in note]
    command, _, file = note.partition("does not check it: ")[2].rpartition(" < ")
    command = command.replace("ALLOWED_SIGNERS", "signers").replace("SIGNER", "auditor@example.org")
    assert Path(file) == manifest
    assert "Good" in run(command, input=manifest.read_text()).stdout
    assert run(command, input=manifest.read_text() + " ").returncode != 0


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_a_request_for_a_time_stamp_has_the_digest_of_the_manifest(tmp_path: Path) -> None:
    manifest = reported(tmp_path).folder / "manifest.json"
    document = (Path(__file__).parents[2] / "docs" / "how-to" / "evidence.md").read_text()
    (command,) = [line.strip() for line in document.splitlines() if line.strip().startswith("openssl ts -query")]
    words = shlex.split(command.replace("digits-evidence/", f"{manifest.parent}/"))
    subprocess.run(words, check=True, capture_output=True)
    request = manifest.with_name("manifest.json.tsq").read_bytes()
    assert hashlib.sha256(manifest.read_bytes()).digest() in request


def test_the_number_of_a_report_is_that_of_its_content(tmp_path: Path) -> None:
    policy = policy_file(tmp_path / "policy.yaml")
    audited(tmp_path / "a", policy)
    numbers = [cw.evidence(tmp_path / "a", policy, tmp_path / name).facts["number"] for name in "xy"]
    audited(tmp_path / "b" / "a", policy, seed=4)
    assert numbers[0] == numbers[1] != cw.evidence(tmp_path / "b" / "a", policy, tmp_path / "z").facts["number"]


def test_the_machine_and_the_date_are_recorded(tmp_path: Path) -> None:
    recorded = reported(tmp_path).facts["audits"][0]["environment"]
    assert dt.datetime.fromisoformat(recorded["date"]).tzinfo is not None
    assert recorded["processor"]


def test_classes_within_groups_have_rows_with_simultaneous_intervals(tmp_path: Path) -> None:
    policy = policy_file(tmp_path / "policy.yaml")
    sites = ["north", "south", "south"] * 20
    report = cw.evidence(audited(tmp_path / "a", policy, group=sites), policy, tmp_path / "evidence")
    (audit,) = report.facts["audits"]
    assert audit["crossed"] is not None
    rows = {row["name"]: row["robust"] for row in audit["crossed"]}
    correct = cw.Audit.load(tmp_path / "a").outcomes.correct("all")
    labels, north = np.arange(60) % 2, np.arange(60) % 3 == 0
    sited = {"north": north, "south": ~north}
    cells = {f"{site}: {label}": chosen & (labels == label) for site, chosen in sited.items() for label in (0, 1)}
    assert {name: (row["n"], row["count"]) for name, row in rows.items()} == {
        name: (int(cell.sum()), int(correct[cell].sum())) for name, cell in cells.items()
    }
    counts = ClassCounts(*np.array([[row["n"], row["count"]] for row in rows.values()]).T)
    low, _ = class_intervals(counts, simultaneous=True)
    np.testing.assert_allclose(np.array([row["low"] for row in rows.values()], dtype=np.float64), low)
    assert "Accuracy per class within each group" in report.page.read_text()
    assert build.verify(report.folder).differences == []


def test_further_results_of_the_models_are_items_of_the_report(tmp_path: Path) -> None:
    policy = policy_file(tmp_path / "policy.yaml")
    audited(tmp_path / "a", policy)
    cw.robustness_curve(Net(), images(), attacks="fgsm", highest=0.2, rounds=2, out=tmp_path / "curve")
    found = cw.find_worst_class(Net(), images(), RADIUS, ["fgsm", "pgd:steps=2"], out=tmp_path / "search")
    place = tmp_path / "corrupted"
    corrupted = audit_corruptions(Net(), images(), corruptions=["contrast"], severities=[1, 3], out=place)
    paths = [tmp_path / name for name in ("curve", "a", "search", "corrupted")]
    report = cw.evidence(paths, policy, tmp_path / "evidence")
    curve, search, corruptions = report.facts["supplements"]
    assert [row["name"] for row in curve["rows"]][-1] == "overall"
    assert search["sentence"] == found.sentence
    assert [row["value"] for row in search["rows"]] == found.by_class["estimate"].tolist()
    table = corrupted.table()
    overall = table[table["class"] == "overall"]["accuracy"].tolist()
    assert [row["value"] for row in corruptions["rows"] if "lowest" not in row["name"]] == overall
    assert found.sentence in html.unescape(report.page.read_text())
    assert build.verify(report.folder).differences == []
    assert build.verify(report.folder, paths).differences == []
    assert build.verify(report.folder, paths[1:2]).differences == [], "the further results where they were"
    notes = build.verify(report.folder, model=Net(), images=images(), rerun=3).notes
    assert any("further results are not repeated" in note for note in notes)
    check_refused("on 3 further results, but 2 are given", build.verify, report.folder, paths[:3])
    (report.folder / "appendix.html").touch()
    assert any("appendix.html is in the folder and no part" in note for note in build.verify(report.folder).notes)
    file = tmp_path / "search" / "search.json"
    file.write_text(file.read_text().replace('"sentence": "', '"sentence": "No '))
    assert any("search.json differs" in line for line in build.verify(report.folder).differences)
    other, no = tmp_path / "other", tmp_path / "no"
    cw.robustness_curve(Net(1), images(), attacks="fgsm", highest=0.2, rounds=1, out=other)
    check_refused("a model that no audit of the report has", cw.evidence, [tmp_path / "a", other], policy, no)


def digest(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> str:
    """The digest of images as the documents define it, by another program."""
    found = hashlib.sha256(f"torch.{x.dtype} {x.shape}".encode())
    found.update(np.ascontiguousarray(x).tobytes())
    found.update(y.astype("<i8").tobytes())
    return found.hexdigest()


@pytest.mark.parametrize("kind", ["uint8", "float32"])
def test_the_digest_is_the_documented_one_also_for_streams_of_known_length(kind: str) -> None:
    x = torch.rand(10, 3, 4, 5)
    x = (x * 255).to(torch.uint8) if kind == "uint8" else x
    y = torch.arange(10) % 3
    expected = digest(x.numpy(), y.numpy())
    assert cw.Images(x, y).fingerprint() == expected
    stream = Stream([(x[row], int(y[row])) for row in range(10)], images=10)
    for _ in stream.blocks(4):
        pass
    assert stream.fingerprint() == expected
