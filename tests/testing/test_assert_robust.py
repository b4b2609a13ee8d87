"""`assert_robust`, its cache, and the pytest plugin."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor

from classwise.auditing.criteria.thresholds import Threshold
from classwise.auditing.outcomes.table import Outcomes
from classwise.auditing.run.result import Audit
from classwise.core.errors import ClasswiseError, IncompleteError
from classwise.reporting.facts.condition_text import result_text
from classwise.stats.intervals import lowest_interval
from classwise.stats.rational import as_rational
from classwise.testing import assert_robust, robustness
from classwise.testing.robustness import _conditions
from classwise.threat.ball import Threat
from tests.auditing.test_criteria import POLICY, written
from tests.auditing.toys import images, model
from tests.refusals import check_refused

SETTINGS: dict[str, Any] = {"threat": "Linf:0.02", "attacks": "fgsm", "guards": "off"}
ROOT = Path(__file__).parents[2]


def test_a_robust_model_passes_and_a_weak_class_fails(tmp_path: Path) -> None:
    data = images(strength=(0.06, 0.06, 0.01))
    audit = assert_robust(model(), data, worst=0.0, **SETTINGS)
    worst, overall = audit.worst_class().accuracy, float(audit.by_attack.loc["all", "overall"])  # type: ignore[arg-type]
    assert 0.1 < worst < overall < 1
    assert_robust(model(), data, worst=worst, overall=overall, **SETTINGS)
    with pytest.raises(AssertionError, match="worst under all is") as caught:
        assert_robust(model(), data, worst=worst + 0.01, overall=overall, cache=tmp_path, **SETTINGS)
    lines = str(caught.value).splitlines()
    condition = Threshold("worst", "all", "<", as_rational(worst + 0.01))
    assert lines[1] == f"  {result_text(audit, condition)}"
    assert lines[1].startswith(f"  worst under all is {100 * worst:.1f} % (")
    assert lines[3] == f"  {audit.worst_class().name}: {100 * worst:.1f}"
    low, high = lowest_interval(audit.counts())
    name = "95 % interval of the lowest class accuracy, whichever class it is"
    assert lines[6] == f"{name}, for new images: [{100 * low:.1f}, {100 * high:.1f}]"
    assert len(lines) == 8
    assert lines[-1].startswith(f"audit: {tmp_path}")
    with pytest.raises(AssertionError, match="accuracy of class 2 under all"):
        assert_robust(model(), data, fail_if=["class 2(all) < 1"], **SETTINGS)


def test_the_criteria_of_a_policy_are_conditions(tmp_path: Path) -> None:
    data = images(strength=(0.06, 0.06, 0.01))
    options: dict[str, Any] = {"attacks": "fgsm", "precision": "float32"}

    def stated(**changes: Any) -> Path:
        threat = POLICY["threat_model"] | {"radius": "Linf:0.02"}
        return written(tmp_path / "policy.yaml", threat_model=threat, **changes)

    assert assert_robust(model(), data, policy=stated(fail_if=["overall(all) > 0.99"]), **options).complete
    with pytest.raises(AssertionError, match="overall under all is"):
        assert_robust(model(), data, worst=0.0, policy=stated(fail_if=["overall(all) >= 0"]), **options)
    late = POLICY["validity"] | {"until": "2020-01-01"}
    with pytest.raises(ClasswiseError, match=r"policy.yaml' requires: The policy was valid until 2020-01-01"):
        assert_robust(model(), data, policy=stated(fail_if=["overall(all) > 0.99"], validity=late), **options)


def test_a_requirement_is_required() -> None:
    check_refused("nothing is required; give worst=", assert_robust, model(), images(), **SETTINGS)
    check_refused(
        "fail_if = 'worst\\(all\\) < 1': must be a list of text",
        assert_robust,
        model(),
        images(),
        fail_if="worst(all) < 1",
        **SETTINGS,
    )
    check_refused("limit 20 must be between 0 and 1", assert_robust, model(), images(), worst=20, **SETTINGS)


def test_requirements_of_any_number_type() -> None:
    for worst in (np.float16(0.2), np.float32(0.2), np.longdouble(0.2), 0.2):
        assert _conditions(worst, None, (), ()) == [Threshold.parse("worst(all) < 0.2")]
    for worst, message in ((5e-324, "a fraction of at most 300 digits"), (1e300, "must be below 1e100")):
        check_refused(message, _conditions, worst, None, (), ())
    check_refused("must be a finite number", _conditions, np.longdouble("nan"), None, (), ())
    message = "worst = a value of type int that is too long: must be"
    check_refused(message, assert_robust, model(), images(9), worst=10**5000)
    check_refused("epsilon = a value of type int that is too long", Threat, "Linf", 10**5000)


def test_a_cache_beside_an_output_folder_is_refused(tmp_path: Path) -> None:
    folders = {"out": tmp_path / "a", "cache": tmp_path / "c"}
    message = "cache does not apply with out; omit one of them"
    check_refused(message, assert_robust, model(), images(9), worst=0.0, **SETTINGS, **folders)


def test_audits_are_cached_by_model_data_and_settings(tmp_path: Path) -> None:
    def written() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/outcomes/part-00000.parquet")}

    def run(net: Any = None, data: Any = None, **changed: Any) -> int:
        before = written()
        assert_robust(net or model(), data or images(30), worst=0.0, cache=tmp_path, **SETTINGS | changed)
        return len(written().items() - before.items())

    assert run() == 1
    assert run(overall=0.0) == 0
    assert run(model(scale=0.3)) == 1
    assert run(data=images(30, seed=1)) == 1
    assert run(threat="Linf:0.03") == 1
    assert run(seed=1) == 1
    other_code = type("Other", (type(model()),), {"forward": lambda self, x: self.head(x.flatten(1)) * 2})(
        model().head.weight.detach()
    )
    other_code.load_state_dict(model().state_dict())
    assert run(other_code) == 1


def test_attacks_of_the_user_and_streams_are_not_cached(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from classwise.attacks.external import ExternalAttack

    def attack(x: Tensor, y: Tensor) -> Tensor:
        del y
        return x

    data = images()
    stream = [(data.pixels(), data.y)]
    for source, chosen in ((data, ExternalAttack(attack=attack)), (stream, "fgsm")):
        assert_robust(model(), source, worst=0.0, cache=tmp_path, **SETTINGS | {"attacks": chosen})
    assert not list(tmp_path.iterdir())
    assert caplog.text.count("the audit is not cached: attacks of your own and streamed data have no hash") == 2


def test_the_modes_of_the_model_are_restored(tmp_path: Path) -> None:
    net = model().train()
    for _ in range(2):
        assert_robust(net, images(), worst=0.0, cache=tmp_path, **SETTINGS)
        assert all(module.training for module in net.modules())


@pytest.mark.parametrize(("group", "row", "more"), [(None, "class", "classes"), ("site", "site group", "site groups")])
def test_the_message_names_the_weakest_classes_only(group: str | None, row: str, more: str) -> None:
    data = images(count=240, classes=12)
    data = data.with_column("site", data.y, [f"site {number}" for number in range(12)])
    with pytest.raises(AssertionError, match=f"and 2 more {more}") as caught:
        assert_robust(model(12), data, worst=1.0, group=group, **SETTINGS | {"threat": "Linf:0.2"})
    assert f"\naccuracy by {row} under all, in percent (" in str(caught.value)
    assert robustness.SHOWN == 10


def test_a_condition_that_is_met_fails_beside_one_that_is_undecided(monkeypatch: pytest.MonkeyPatch) -> None:
    """As classwise audit does, in any order of the conditions."""
    whole = assert_robust(model(), images(), worst=0.0, **SETTINGS).outcomes
    part = Audit(Outcomes(whole.frame[whole.frame["attack"] == "clean"], whole.meta))
    monkeypatch.setattr(robustness, "audit", lambda *given, **options: part)
    undecided, met = "overall(all) <= 0", "overall(clean) > 0"
    with pytest.raises(AssertionError, match="overall under clean is"):
        assert_robust(model(), images(), fail_if=[undecided, met], **SETTINGS)
    with pytest.raises(IncompleteError, match="is undecided"):
        assert_robust(model(), images(), fail_if=[undecided], **SETTINGS)


TESTS = """
from classwise.stats.rational import as_rational
from classwise.testing import assert_robust
from tests.auditing.toys import images, model
from tests.refusals import check_refused

def test_passes():
    assert_robust(model(), images(), worst=0.0, threat="Linf:0.02", attacks="fgsm", guards="off")

def test_fails():
    assert_robust(model(), images(), worst=1.0, threat="Linf:0.2", attacks="fgsm", guards="off")
"""


def run_pytest(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    installed = entry_points(group="pytest11", name="classwise")
    plugin = [] if installed else ["-p", "classwise.testing.plugin"]
    code = "import sys; sys.path[:0] = [%r, %r]; import pytest; sys.exit(pytest.main(sys.argv[1:]))"
    command = [sys.executable, "-c", code % (str(ROOT / "src"), str(ROOT)), "-q", *plugin, *words]
    return subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True)


@pytest.mark.slow
def test_the_plugin_caches_audits_in_the_cache_of_pytest(tmp_path: Path) -> None:
    (tmp_path / "test_model.py").write_text(TESTS, encoding="utf-8")
    done = run_pytest(tmp_path)
    assert "1 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert "AssertionError: the model is not robust enough" in done.stdout
    assert "robustness.py" not in done.stdout  # the traceback ends in the user's test
    kept = sorted((tmp_path / ".pytest_cache" / "d" / "classwise").glob("*/audit.json"))
    assert len(kept) == 2


def test_the_plugin_imports_nothing_heavy_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "test_other.py").write_text(
        "import sys\ndef test_other():\n"
        "    assert 'classwise.testing.plugin' in sys.modules\n"
        "    assert not {'torch', 'numpy', 'pandas', 'pydantic', 'rich'} & set(sys.modules)\n",
        encoding="utf-8",
    )
    done = run_pytest(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not (tmp_path / ".pytest_cache" / "d").exists()


def test_the_plugin_is_an_entry_point_of_pytest() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["entry-points"]["pytest11"] == {"classwise": "classwise.testing.plugin"}


def test_without_a_cache_the_plugin_does_nothing(pytestconfig: pytest.Config) -> None:
    from classwise.testing import plugin
    from classwise.testing.cache import _folder

    class Bare:
        """The configuration of pytest with -p no:cacheprovider."""

    before = list(_folder)
    plugin.pytest_configure(Bare())  # type: ignore[arg-type]
    assert _folder == before
    plugin.pytest_unconfigure(Bare())  # type: ignore[arg-type]
    assert _folder == before
