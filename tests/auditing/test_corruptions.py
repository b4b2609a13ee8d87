"""Accuracies by class and corruption, from the outcomes of audits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from classwise.auditing.outcomes.table import Outcomes
from classwise.auditing.run.audit import audit
from classwise.auditing.run.corruptions import CorruptionAudits, audit_corruptions
from classwise.auditing.run.result import Audit
from classwise.data import Images, corrupt, load_data
from classwise.data.corruptions import CORRUPTIONS
from classwise.data.corruptions.corrupt import STANDARD
from tests.refusals import check_refused

LABELS = [0, 0, 0, 0, 1, 1]


class Bright(nn.Module):
    """Class 1 for bright images."""

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean((1, 2, 3))
        return torch.stack([0.5 - mean, mean - 0.5], 1)


def predicted(predictions: list[int]) -> Audit:
    return Audit(Outcomes.from_predictions(LABELS, clean=predictions, class_names=["cat", "dog"]))


@pytest.fixture
def found() -> CorruptionAudits:
    return CorruptionAudits(
        {
            ("fog", 1): predicted([0, 0, 0, 0, 1, 1]),
            ("fog", 3): predicted([0, 0, 1, 1, 1, 0]),
            ("blur", 1): predicted([0, 1, 1, 1, 1, 1]),
            ("blur", 3): predicted([1, 1, 1, 1, 1, 0]),
        }
    )


def test_the_table_has_every_cell_with_its_interval(found: CorruptionAudits) -> None:
    table = found.table()
    assert len(table) == 4 * 3
    row = table[(table.corruption == "fog") & (table.severity == 3) & (table["class"] == "cat")].iloc[0]
    assert (row.n, row.accuracy) == (4, 0.5)
    expected = found.audits["fog", 3].intervals("clean")
    assert (row.low, row.high) == (expected.low[0], expected.high[0])
    whole = table[(table.corruption == "blur") & (table.severity == 3) & (table["class"] == "overall")].iloc[0]
    assert (whole.n, whole.accuracy) == (6, pytest.approx(1 / 6))


def test_accuracies_are_averaged_over_severities_and_corruptions(found: CorruptionAudits) -> None:
    expected = pd.DataFrame(
        {"fog": [0.75, 0.75, 0.75], "blur": [(3 / 6 + 1 / 6) / 2, 0.125, 0.75], "mean": [13 / 24, 0.4375, 0.75]},
        index=pd.Index(["overall", "cat", "dog"], name="class"),
    )
    table = found.by_class()
    pd.testing.assert_frame_equal(table[["fog", "blur", "mean"]], expected)
    assert table.columns.tolist()[:3] == ["fog", "fog_low", "fog_high"]
    mixed = CorruptionAudits(
        {("fog", 1): predicted(LABELS), ("fog", 3): Audit(Outcomes.from_predictions([0], clean=[0]))}
    )
    check_refused("audit the same images under each corruption", mixed.by_class)


def test_intervals_of_means_count_each_image_once(found: CorruptionAudits) -> None:
    """Of one severity they are those of Clopper and Pearson; equal severities add no images."""
    one = CorruptionAudits({("fog", 1): found.audits["fog", 3]})
    same = CorruptionAudits({("fog", severity): found.audits["fog", 3] for severity in (1, 3, 5)})
    pd.testing.assert_frame_equal(one.by_class(), same.by_class())
    for name, right, n in (("overall", 3, 6), ("cat", 2, 4), ("dog", 1, 2)):
        ends = [stats.beta.ppf(0.025, right, n - right + 1), stats.beta.ppf(0.975, right + 1, n - right)]
        own = [one.by_class()[column][name] for column in ("mean_low", "mean_high")]
        assert own == pytest.approx(ends)


def test_relative_errors_are_ratios_of_sums(found: CorruptionAudits) -> None:
    baseline = CorruptionAudits({key: predicted([1, 1, 1, 1, 1, 0]) for key in found.audits})
    relative = found.relative_error(baseline)
    # Errors of cats: fog 0 and 1/2, blur 3/4 and 1; of the baseline 1 each.
    assert list(relative.loc["cat"]) == pytest.approx([0.25, 0.875, 0.5625])
    assert list(relative.loc["dog"]) == pytest.approx([0.5, 0.5, 0.5])
    assert list(relative.loc["overall"]) == pytest.approx([0.5 / (10 / 6), (8 / 6) / (10 / 6), 0.55])
    check_refused(
        "the baseline has other corruptions or severities",
        found.relative_error,
        CorruptionAudits({("fog", 1): predicted(LABELS)}),
    )


def test_the_audits_are_those_of_the_corrupted_images(tmp_path: Path) -> None:
    x = torch.full((6, 3, 8, 8), 90, dtype=torch.uint8)
    x[4:] = 200
    data = Images(x, torch.tensor(LABELS), ["cat", "dog"], "made")
    kinds, levels = ["brightness", "fog"], [1, 5]
    found = audit_corruptions(Bright(), data, corruptions=kinds, severities=levels, out=tmp_path, guards="off")
    for (kind, level), corrupted in found.audits.items():
        single = audit(Bright(), corrupt(data, kind, level), "Linf:0.1", "clean", guards="off")
        assert corrupted.outcomes.frame["prediction"].equals(single.outcomes.frame["prediction"])
        assert corrupted.names == ("clean", "all")
        assert corrupted.outcomes.meta.data == f"made, {kind} {level} (cifar-10-c)"
        assert Audit.load(tmp_path / f"{kind}-{level}").outcomes.meta.data_hash == corrupted.outcomes.meta.data_hash
    assert list(found.by_class().loc["cat"]) != list(found.by_class().loc["dog"])
    check_refused(
        "already contains this audit with these settings: add --resume",
        audit_corruptions,
        Bright(),
        data,
        corruptions=["fog"],
        severities=[1],
        out=tmp_path,
        guards="off",
    )
    again = audit_corruptions(
        Bright(), data, corruptions=["fog", "snow"], severities=[1], out=tmp_path, resume=True, guards="off"
    )
    assert again.audits["fog", 1].by_class.equals(found.audits["fog", 1].by_class)
    files = again.save(tmp_path / "tables")
    written = pd.read_csv(files[1], index_col="class")
    pd.testing.assert_frame_equal(written, again.by_class(), check_exact=False)
    assert len(pd.read_csv(files[0])) == 2 * 3


def test_published_images_are_read(tmp_path: Path) -> None:
    folder = tmp_path / "CIFAR-10-C"
    folder.mkdir()
    pixels = np.zeros((10, 32, 32, 3), np.uint8)
    pixels[6:] = 255  # bright from severity 4 on
    np.save(folder / "labels.npy", np.array([0, 1] * 5))
    np.save(folder / "fog.npy", pixels)

    class Ten(Bright):
        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.pad(super().forward(x), (0, 8), value=-9.0)

    for data in ("cifar10-c", folder):
        load = {"root": tmp_path} if data == "cifar10-c" else {}
        found = audit_corruptions(Ten(), data, corruptions=["fog"], severities=[3, 4], load=load, guards="off")
        by_level = found.table().pivot_table(index="class", columns="severity", values="accuracy")
        zero, one = ("airplane", "automobile") if data == "cifar10-c" else ("0", "1")
        assert by_level.loc[[zero, one]].to_numpy().tolist() == [[1, 0], [0, 1]]
        assert found.audits["fog", 4].outcomes.meta.data in ("cifar10-c, fog 4", "CIFAR-10-C, fog 4")


def test_attacks_run_on_the_corrupted_images() -> None:
    x = torch.tensor([90, 90, 90, 125, 200, 130], dtype=torch.uint8)[:, None, None, None].expand(-1, 3, 8, 8)
    data = Images(x.contiguous(), torch.tensor(LABELS), ["cat", "dog"], "made")
    found = audit_corruptions(
        Bright(), data, "fgsm", "Linf:0.02", corruptions=["contrast"], severities=[1], guards="off"
    )
    (each,) = found.audits.values()
    assert each.names == ("clean", "fgsm", "all")
    assert found.table("clean").accuracy.mean() > found.table("fgsm").accuracy.mean()


def test_bad_corruptions() -> None:
    data = load_data("digits", subset=16)
    for options, message in (
        ({"corruptions": []}, "give at least one of each"),
        ({"severities": [1, 1]}, "and each once"),
        ({"corruptions": ["frog"]}, "unknown corruption 'frog'; did you mean 'fog'"),
        ({"severities": [6]}, r"severities = \[6\]: must be .* from 1 to 5"),
        ({"sede": 1}, "unknown argument of audit_corruptions"),
    ):
        check_refused(message, audit_corruptions, Bright(), data, **options)


def test_the_benchmark_has_fifteen_corruptions() -> None:
    extra = {"gaussian_blur", "saturate", "spatter", "speckle_noise"}
    assert len(STANDARD) == 15
    assert set(STANDARD) == set(CORRUPTIONS) - extra


def test_an_audit_without_attacks_needs_no_threat() -> None:
    data = Images(torch.rand(6, 3, 8, 8), torch.tensor(LABELS), ["cat", "dog"], "made")
    assert audit(Bright(), data, attacks="clean", guards="off").names == ("clean", "all")
    assert audit(Bright(), data, "Linf:0.1", ["clean", "fgsm"], guards="off").names == ("clean", "fgsm", "all")
    check_refused("has no usual threat", audit, Bright(), data, attacks="fgsm")
    check_refused("no attack is given", audit, Bright(), data, "Linf:0.1", [])
