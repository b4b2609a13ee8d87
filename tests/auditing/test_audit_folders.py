"""The folder of an audit: resumption after a kill, other settings, names, and a deadline."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from classwise.attacks.engine.queue import Queue
from classwise.attacks.engine.rows import Columns
from classwise.auditing.run.audit import audit
from classwise.auditing.run.loop import AttackLoop
from classwise.auditing.run.result import Audit
from classwise.core.errors import ClasswiseError
from classwise.models import load_model, save_weights
from tests.auditing import toys
from tests.auditing.listening import Listener

from .test_audit import run


@pytest.mark.slow
@pytest.mark.parametrize(("after", "cascade"), [(40, False), (190, True)])
def test_a_killed_audit_resumes_with_the_same_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int, cascade: bool
) -> None:
    monkeypatch.setattr("classwise.auditing.outcomes.writer.BLOCK_ROWS", 24)
    more: dict[str, Any] = {"attacks": "tpgd:steps=3", "cascade": cascade, "save": ["logits", "images"]}
    whole = run(out=tmp_path / "whole", guards="auto", **more)
    with pytest.raises(KeyboardInterrupt):
        run(out=tmp_path / "killed", progress=Listener(after), **more)
    begun = len(list((tmp_path / "killed" / "outcomes").glob("part-*")))
    resumed = run(out=tmp_path / "killed", resume=True, guards="auto", **more)
    assert 0 < begun < len(list((tmp_path / "killed" / "outcomes").glob("part-*")))
    pd.testing.assert_frame_equal(resumed.outcomes.frame, whole.outcomes.frame, check_exact=True)
    again = Audit.load(tmp_path / "killed")
    pd.testing.assert_frame_equal(again.outcomes.frame, whole.outcomes.frame, check_exact=True)
    assert again.warnings == whole.warnings
    for kind, attack in itertools.product(("logits", "images", "examples"), ("tpgd[2]", "tpgd[50]")):
        for found, expected in zip(again.artifacts.get(kind, attack), whole.artifacts.get(kind, attack), strict=True):
            assert np.array_equal(found, expected)


@pytest.mark.slow
@pytest.mark.parametrize("cascade", [True, False])
def test_starts_side_by_side_change_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cascade: bool) -> None:
    """Also of an audit that is killed and resumed, and of shards."""
    monkeypatch.setattr("classwise.auditing.outcomes.writer.BLOCK_ROWS", 24)
    more: dict[str, Any] = {"attacks": ["pgd:steps=3,restarts=4", "pgd-t:steps=4"], "cascade": cascade}
    early, begun = Queue._early, list[int]()

    def noted(self: Queue, slots: Columns, live: Tensor, count: int) -> Columns | None:
        rows = early(self, slots, live, count)
        begun.append(0 if rows is None else len(rows["row"]))
        return rows

    with monkeypatch.context() as patch:
        patch.setattr(Queue, "_early", lambda *_: None)
        expected = run(**more).outcomes.frame
    monkeypatch.setattr(Queue, "_early", noted)
    with pytest.raises(KeyboardInterrupt):
        run(out=tmp_path / "killed", progress=Listener(130), **more)
    resumed = run(out=tmp_path / "killed", resume=True, **more).outcomes.frame
    pd.testing.assert_frame_equal(resumed, expected, check_exact=True)
    shards = [run(shard=f"{number}/2", out=tmp_path / str(number), **more).outcomes.frame for number in (1, 2)]
    joined = pd.concat(shards).sort_values(["attack", "index"]).reset_index(drop=True)
    whole = expected.sort_values(["attack", "index"]).reset_index(drop=True)
    pd.testing.assert_frame_equal(joined, whole, check_exact=True)
    assert sum(begun) > 0


@pytest.mark.slow
def test_partially_written_files_are_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("classwise.auditing.outcomes.writer.BLOCK_ROWS", 16)
    whole = run(out=tmp_path / "whole", save="logits")
    parts = sorted((tmp_path / "whole" / "outcomes").glob("part-*"))
    parts[-1].unlink()  # killed after the kept tensors of this part and before its rows
    (tmp_path / "whole" / "outcomes" / ".part-00099.parquet.x.tmp").write_bytes(b"half")
    resumed = run(out=tmp_path / "whole", save="logits", resume=True)
    pd.testing.assert_frame_equal(resumed.outcomes.frame, whole.outcomes.frame, check_exact=True)
    assert len(resumed.artifacts.get("logits", "pgd-margin")[0]) == len(
        whole.outcomes.rows("pgd-margin").query("backwards > 0")
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("attacks", "differs"),
    [
        (["fgsm", "pgd:steps=2"], "attacks was clean, fgsm, now clean, fgsm, pgd"),
        ("fgsm:step_size=0.5eps", r"attacks\.fgsm\.step_size was \S+, now \S+"),
    ],
)
def test_resuming_with_other_attacks_names_the_difference(tmp_path: Path, attacks: Any, differs: str) -> None:
    run(out=tmp_path / "a", attacks="fgsm")
    with pytest.raises(
        ClasswiseError, match=f"other settings: {differs}; give another --out, or --resume with the same"
    ):
        run(out=tmp_path / "a", attacks=attacks)


def test_a_surrogate_is_identified_by_its_parameters_not_by_its_path(tmp_path: Path) -> None:
    """It may be moved; other parameters at the same path are another attack."""
    torch.manual_seed(0)
    model, other = (load_model("lenet", num_classes=3, in_channels=1) for _ in range(2))
    x = torch.rand(30, 1, 28, 28)
    data = (x, model(x).argmax(1))

    def transfer(file: str) -> Audit:
        attack = f"transfer:surrogate={tmp_path / file},attack=fgsm"
        return audit(model, data, "Linf:0.1", attack, out=tmp_path / "audit", resume=True)

    save_weights(tmp_path / "a.safetensors", other)
    first = transfer("a.safetensors")
    (tmp_path / "a.safetensors").rename(tmp_path / "b.safetensors")
    pd.testing.assert_frame_equal(transfer("b.safetensors").outcomes.frame, first.outcomes.frame, check_exact=True)
    save_weights(tmp_path / "b.safetensors", model)
    with pytest.raises(ClasswiseError, match=r"other settings: attacks\.transfer\.surrogate_hash was \S+, now \S+"):
        transfer("b.safetensors")


def test_resuming_with_other_groups_of_the_images_is_an_error(tmp_path: Path) -> None:
    groups = ["left"] * 30 + ["right"] * 60
    run(out=tmp_path / "a", attacks="fgsm", group=groups)
    assert run(out=tmp_path / "a", attacks="fgsm", group=groups, resume=True).by_class["n"].tolist() == [30, 60]
    with pytest.raises(ClasswiseError, match="contains an audit with other values of 'group'; give another folder"):
        run(out=tmp_path / "a", attacks="fgsm", group=groups[::-1], resume=True)


@pytest.mark.slow
def test_a_folder_contains_one_audit(tmp_path: Path) -> None:
    run(out=tmp_path / "a")
    with pytest.raises(ClasswiseError, match="already contains this audit"):
        run(out=tmp_path / "a")
    with pytest.raises(ClasswiseError, match="other settings: threat was"):
        run(out=tmp_path / "a", threat="Linf:0.1", resume=True)
    with pytest.raises(ClasswiseError, match="other settings: seed was 0, now 1"):
        run(out=tmp_path / "a", seed=1, resume=True)
    with pytest.raises(ClasswiseError, match=r"other settings: another model \(model_hash was"):
        run(out=tmp_path / "a", model=toys.model(scale=2.0), resume=True)
    with pytest.raises(ClasswiseError, match=r"other settings: other images \(data_hash was"):
        run(out=tmp_path / "a", data=toys.images(seed=1), resume=True)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("do not touch")
    with pytest.raises(ClasswiseError, match="not empty and contains no audit"):
        run(out=tmp_path / "full")
    with pytest.raises(ClasswiseError, match="is a file"):
        run(out=tmp_path / "full" / "thesis.txt")
    assert (tmp_path / "full" / "thesis.txt").read_text() == "do not touch"


def test_a_run_folder_stores_its_audits_inside(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text("name: at\n")
    assert run(out=tmp_path).name == "audit"
    assert Audit.load(tmp_path).path == tmp_path / "audits" / "audit"


def test_an_audit_has_the_name_of_its_folder(tmp_path: Path) -> None:
    assert run(out=tmp_path / "digits-test").name == "digits-test"
    assert Audit.load(tmp_path / "digits-test").name == "digits-test"


@pytest.mark.slow
def test_missing_images_are_logged_after_the_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run()
    late = iter([False] * 5)
    monkeypatch.setattr(AttackLoop, "late", property(lambda _: next(late, True)))
    lines = Listener()
    stopped = run(out=tmp_path / "a", max_time=1000.0, progress=lines, guards="auto")
    missing = stopped.outcomes.missing
    assert missing["pgd-margin"] == 90
    assert 0 < missing["pgd"] < 90
    assert stopped.outcomes.attacks == ("clean", "pgd", "pgd-margin")
    assert not stopped.complete
    assert "incomplete" in {warning.name for warning in stopped.warnings}
    assert any("pgd-margin: 90 images are not judged" in line for line in lines.lines)
    # Images that were begun are finished, and classes have had their turn alike.
    judged = stopped.bounds("pgd").judged
    assert judged.max() - judged.min() <= 1
    for name in stopped.names:
        counts = whole.counts(name)
        low, high = stopped.bounds(name).low.correct, stopped.bounds(name).high.correct
        assert (stopped.bounds(name).count == counts.count).all()
        assert (low <= counts.correct).all()
        assert (counts.correct <= high).all()
    monkeypatch.undo()
    resumed = run(out=tmp_path / "a", resume=True)
    pd.testing.assert_frame_equal(resumed.outcomes.frame, whole.outcomes.frame, check_exact=True)
