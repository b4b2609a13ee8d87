"""Policies: what their files may contain, and when an audit records one."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import nn

import classwise as cw
from classwise.auditing.criteria.policy import Policy
from classwise.core.errors import ClasswiseError

POLICY: dict[str, Any] = {
    "title": "Two classes",
    "intended_use": "a test",
    "operating_domain": "random images",
    "threat_model": {
        "goal": "any other class",
        "knowledge": "white-box",
        "capability": "change every pixel",
        "radius": "Linf:0.1",
        "why": "it is small",
    },
    "model": {"architecture": "linear", "size": "34 parameters", "provenance": "random weights"},
    "data": {"source": "generated", "licence": "none", "sampling": "uniform"},
    "fail_if": ["overall(all) < 0.9", "'1'(all).low < 1%"],
    "limits": ["Only Linf perturbations."],
    "validity": {"until": "2027-12-31", "retest_if": ["new weights"]},
}


def written(path: Path, **changes: Any) -> Path:
    path.write_text(yaml.safe_dump(POLICY | changes, sort_keys=False))
    return path


def audited(out: Path | None, policy: Path | None = None, *, resume: bool = False, **options: Any) -> cw.Audit:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 2))
    x, y = torch.rand(40, 1, 4, 4), torch.arange(40) % 2
    options = {"attacks": ["fgsm"], "guards": "off"} | options
    return cw.audit(model, (x, y), "Linf:0.1", out=out, policy=policy, resume=resume, **options)


def test_a_criterion_names_a_group_of_the_audit(tmp_path: Path) -> None:
    sites = ["north", "south"] * 20
    file = written(tmp_path / "policy.yaml", fail_if=["north(all) < 0.1", "worst(all) < 0.1"])
    audit = audited(tmp_path / "a", file, group=sites)
    assert audit.outcomes.meta.policy == Policy.read(file).digest
    with pytest.raises(ClasswiseError, match=r"unknown measure or class in condition .*; known: .*north"):
        audited(None, written(tmp_path / "other.yaml"), group=sites)


def test_the_digest_is_recorded_at_the_start_and_in_every_file(tmp_path: Path) -> None:
    file = written(tmp_path / "policy.yaml")
    digest = Policy.read(file).digest
    stopped = audited(tmp_path / "a", file, max_time=1e-9)
    assert not len(stopped.outcomes.frame)
    assert '"policy": "' + digest in (tmp_path / "a" / "audit.json").read_text()
    assert audited(tmp_path / "a", resume=True).outcomes.meta.policy == digest
    assert cw.Audit.load(tmp_path / "a").outcomes.meta.policy == digest
    assert audited(None, file).outcomes.meta.policy == digest


def test_a_policy_given_to_a_resumed_audit_is_not_recorded(tmp_path: Path) -> None:
    audited(tmp_path / "a", max_time=1e-9)
    resumed = audited(tmp_path / "a", written(tmp_path / "policy.yaml"), resume=True)
    assert resumed.outcomes.meta.policy is None
    first, other = written(tmp_path / "first.yaml"), written(tmp_path / "other.yaml", title="Other")
    audited(tmp_path / "deep" / "b", first, max_time=1e-9)
    resumed = audited(tmp_path / "deep" / "b", other, resume=True)
    assert resumed.outcomes.meta.policy == Policy.read(first).digest


def test_a_policy_is_not_recorded_after_another_audit_of_the_same_model(tmp_path: Path) -> None:
    file = written(tmp_path / "policy.yaml")
    audited(tmp_path / "a" / "first", file)
    assert audited(tmp_path / "a" / "second", file, seed=1).outcomes.meta.policy is not None
    audited(tmp_path / "b" / "first")
    assert audited(tmp_path / "b" / "second", file, seed=1).outcomes.meta.policy is None


def test_copied_outcomes_have_no_policy(tmp_path: Path) -> None:
    file = written(tmp_path / "policy.yaml")
    audited(tmp_path / "without")
    audited(tmp_path / "deep" / "with", file, max_time=1e-9)
    shutil.copytree(tmp_path / "without" / "outcomes", tmp_path / "deep" / "with" / "outcomes", dirs_exist_ok=True)
    assert cw.Audit.load(tmp_path / "deep" / "with").outcomes.meta.policy is None
    audited(tmp_path / "deeper" / "with", file)
    shutil.copytree(tmp_path / "deeper" / "with" / "outcomes", tmp_path / "without" / "outcomes", dirs_exist_ok=True)
    assert cw.Audit.load(tmp_path / "without").outcomes.meta.policy is None


def test_a_merge_records_the_policy_of_all_shards(tmp_path: Path) -> None:
    file = written(tmp_path / "policy.yaml")
    for folder, policies in (("same", (file, file)), ("mixed", (file, None))):
        for number, policy in enumerate(policies):
            out = tmp_path / folder / "shards" / f"00{number + 1}-of-002"
            audited(out, policy, shard=f"{number + 1}/2")
        merged = audited(tmp_path / folder, file, shards=2)
        assert (merged.outcomes.meta.policy is not None) == (folder == "same")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"titel": "x"}, "titel"),
        ({"title": " "}, "title"),
        ({"fail_if": []}, "fail_if"),
        ({"fail_if": ["worst < 2"]}, "must have the form"),
        ({"fail_if": ["worst(all) < 0.2"] * 2}, "occurs twice"),
        ({"digest": "0"}, "computed from the file"),
        ({"validity": {"until": "2027"}}, r"policy\.yaml': validity\.retest_if is missing$"),
        ({"threat_model": POLICY["threat_model"] | {"radius": "Linf:x"}}, "Linf:x"),
    ],
)
def test_invalid_policies_are_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ClasswiseError, match=message):
        Policy.read(written(tmp_path / "policy.yaml", **changes))


@pytest.mark.parametrize("content", [b"- a list", b"\xff", b"a: [", None])
def test_files_that_are_no_policy_are_refused(content: bytes | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "policy.yaml").write_bytes(content)
    with pytest.raises(ClasswiseError, match="policy") as caught:
        Policy.read(tmp_path / "policy.yaml")
    assert "Errno" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"threat_model": POLICY["threat_model"] | {"radius": "Linf:0.2"}}, "states the threat Linf:51/255"),
        ({"fail_if": ["worst(pgd) < 0.2"]}, "unknown attack in condition"),
        ({"fail_if": ["cat(all) < 0.2"]}, "cat"),
    ],
)
def test_policies_that_do_not_fit_the_audit_are_refused_first(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    file = written(tmp_path / "policy.yaml", **changes)
    with pytest.raises(ClasswiseError, match=message):
        audited(tmp_path / "a", file)
    assert not (tmp_path / "a").exists()
