"""Plans: expansion, exclusion, names, and errors before anything starts."""

from __future__ import annotations

import dataclasses
import itertools
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from classwise.core.errors import ClasswiseError
from classwise.core.files.ownership import owned
from classwise.run import FUNCTIONS
from classwise.sweeps.cells import Cell, SweepFolder
from classwise.sweeps.executors.local import Local
from classwise.sweeps.executors.run import prepare_sweep
from classwise.sweeps.jobs import JOB, Call, Job
from classwise.sweeps.plan import Plan, label, read_recipe
from classwise.sweeps.settings import AuditSettings
from classwise.sweeps.status import cell_status
from classwise.sweeps.tasks import record
from tests.refusals import check_refused

DIGITS: dict[str, Any] = {"recipes": ["at"], "data": ["digits"]}


def names(**plan: Any) -> list[str]:
    return [cell.name for cell in Plan.read(DIGITS | plan).cells()]


def error(**plan: Any) -> str:
    with pytest.raises(ClasswiseError) as raised:
        Plan.read(DIGITS | plan).cells()
    return str(raised.value)


def test_names_are_readable() -> None:
    overrides = [{"model.width": 0.25}, {"model.name": "small-cnn", "threat": "Linf:8/255"}]
    assert names(recipes=["cfa-at"], budgets=["short"], overrides=overrides) == [
        "cfa-at-short-digits-width0.25-seed0",
        "cfa-at-short-digits-model-small-cnn-threat-Linf_8_255-seed0",
    ]


AXES: dict[str, list[Any]] = {
    "recipes": ["at", "trades"],
    "budgets": ["full", "short"],
    "data": ["digits", "mnist"],
    "overrides": [{}, {"model.width": 0.5}],
    "seeds": [0, 1],
}
SINGULAR = {"recipes": "recipe", "budgets": "budget", "data": "data", "overrides": "overrides", "seeds": "seed"}


@pytest.mark.slow
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    axes=st.fixed_dictionaries({name: st.sets(st.sampled_from(range(2)), min_size=1) for name in AXES}),
    fields=st.sets(st.sampled_from(sorted(AXES)), min_size=1),
)
def test_a_plan_is_the_product_without_the_excluded_points(
    monkeypatch: pytest.MonkeyPatch, axes: dict[str, set[int]], fields: set[str]
) -> None:
    monkeypatch.setattr(Plan, "_check", lambda plan, cells: None)  # the recipes are valid

    plan = {name: [AXES[name][place] for place in sorted(axes[name])] for name in AXES}
    pattern = {SINGULAR[name]: plan[name][-1] for name in fields}

    def excluded(point: dict[str, Any]) -> bool:
        return all(
            all(key in point[name] and point[name][key] == wanted for key, wanted in value.items())
            if name == "overrides"
            else point[name] == value
            for name, value in pattern.items()
        )

    points = [dict(zip(map(SINGULAR.get, plan), values, strict=True)) for values in itertools.product(*plan.values())]
    left = [point for point in points if not excluded(point)]  # type: ignore[arg-type]
    parsed = Plan.read({**plan, "audits": {}, "exclude": [pattern]})
    if not left:
        check_refused("excludes all", parsed.cells)
        return
    cells = parsed.cells()
    found = [(cell.recipe, cell.budget, cell.data, cell.overrides, cell.seed) for cell in cells]
    assert found == [tuple(point[name] for name in SINGULAR.values()) for point in left]
    assert len({cell.name for cell in cells}) == len(cells)
    everything = {cell.name: cell for cell in Plan.read({**AXES, "audits": {}}).cells()}
    assert all(everything[cell.name] == cell for cell in cells)  # names do not change when a plan grows


def test_overrides_without_a_short_name_have_a_hash() -> None:
    assert label({"schedules": [{"name": "ccm"}]}) == label({"schedules": [{"name": "ccm"}]})
    assert label({"schedules": [{"name": "ccm"}]}) != label({"schedules": [{"name": "ccr"}]})
    long = {f"model.options.{letter}": 1 for letter in "abcdefgh"}
    assert label(long).startswith("set-")
    assert label(long) != label(long | {"model.options.a": 2})


def test_the_last_part_of_a_field_names_it_only_where_it_is_clear() -> None:
    assert label({"attack.steps": 5}) == "attack.steps5"
    assert label({"validation_attack.steps": 5}) == "validation_attack.steps5"
    assert label({"optimizer.lr": 0.05, "data.augment": "none"}) == "lr0.05-augment-none"


def test_set_applies_to_all_cells_and_is_not_in_their_names() -> None:
    (cell,) = Plan.read(DIGITS | {"set": {"model.width": 0.5, "epochs": 3}, "overrides": [{"epochs": 4}]}).cells()
    assert cell.name == "at-digits-epochs4-seed0"
    assert cell.overrides == {"model.width": 0.5, "epochs": 4}


def test_the_seed_in_an_override_is_that_of_the_cell() -> None:
    start = "sweeps/at/runs/at-digits-seed{seed}/checkpoints/last.safetensors"
    cells = Plan.read(DIGITS | {"seeds": [0, 3], "overrides": [{"model.weights": start}]}).cells()
    assert [cell.overrides["model.weights"] for cell in cells] == [start.format(seed=seed) for seed in (0, 3)]
    assert len({cell.method for cell in cells}) == 1
    assert read_recipe(cells[1]).model.weights == start.format(seed=3)
    (nested,) = Plan.read(DIGITS | {"seeds": [3], "set": {"model": {"weights": start}}}).cells()
    assert nested.overrides == {"model": {"weights": start.format(seed=3)}}


def test_an_audit_attacks_the_weights_of_its_name(tmp_path: Path) -> None:
    audits = {"last": {"which": "last"}, "selected": {}, "average": {"which": "average"}, "ten": {"which": "epoch-10"}}
    overrides: dict[str, Any] = {"averaging": "ema", "checkpoint_epochs": [10]}
    (cell,) = Plan.read(DIGITS | {"overrides": [overrides], "audits": audits}).cells()
    _, *calls = cell.calls(tmp_path)
    files = [Path(str(call.arguments["model"])).relative_to(tmp_path).as_posix() for call in calls]
    assert files == [
        "checkpoints/last.safetensors",
        ".",
        "checkpoints/average.safetensors",
        "checkpoints/epoch-10.safetensors",
    ]
    assert not any("which" in call.arguments for call in calls)


@pytest.mark.parametrize(
    "value", [0.25, 1e-05, "text", "1e5", "no", "a: b", "x\ny", None, True, 7, [1, "2"], {"k": "é"}]
)
def test_a_job_passes_overrides_unchanged(value: Any) -> None:
    from classwise.training.recipe_files import read_value

    cell = Cell("n", "n", "at", "full", "digits", 0, {"field": value})
    assert read_value("field", cell.override_texts()["field"]) == value
    assert cell.calls(Path("run"))[0].arguments["set"] == [f"field={cell.override_texts()['field']}"]


def test_calls_continue_their_own_work(tmp_path: Path) -> None:
    audits: dict[str, Any] = {"full": {"attack": ["pgd", "fgsm"], "subset": 9, "early_stop": False, "guards": "off"}}
    (cell,) = Plan.read(DIGITS | {"budgets": ["short"], "audits": audits}).cells()
    train, audit = cell.calls(tmp_path, "cuda")
    shared: dict[str, Any] = {"device": "cuda", "resume": True}
    assert train == Call(
        function="train",
        arguments={"recipe": "at", "data": "digits", "seed": 0, "budget": "short", "set": [], **shared},
        out=str(tmp_path),
    )
    assert audit == Call(
        function="audit",
        arguments={"model": str(tmp_path), **audits["full"], **shared},
        out=str(tmp_path / "audits" / "full"),
    )


MODEL: dict[str, Any] = {"recipes": [], "models": ["timm:resnet18"]}


def test_a_model_is_audited_once_for_each_data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the seeds; files have absolute paths, and names from which checkpoints can be told apart."""
    monkeypatch.chdir(tmp_path)
    weights = Path("runs/mine/checkpoints/last.safetensors")
    weights.parent.mkdir(parents=True)
    weights.write_bytes(b"")
    plan = Plan.read(
        {
            "recipes": ["at"],
            "models": [str(weights), "runs/mine", "timm:resnet18"],
            "data": ["digits", "mnist"],
            "seeds": [0, 1],
            "audits": {"full": {"attack": ["pgd"], "subset": 9}},
            "exclude": [{"model": "runs/mine", "data": "mnist"}, {"recipe": "at"}],
        }
    )
    cells = plan.cells()
    expected = ["mine-last-digits", "mine-last-mnist", "mine-digits", "resnet18-digits", "resnet18-mnist"]
    assert [cell.name for cell in cells] == [cell.method for cell in cells] == expected
    (call,) = cells[0].calls(tmp_path / "run", "cuda")
    expected_call: dict[str, Any] = {"model": str(weights.absolute()), "data": "digits", "attack": ["pgd"], "subset": 9}
    assert call == Call(
        function="audit",
        arguments=expected_call | {"device": "cuda", "resume": True},
        out=str(tmp_path / "run" / "audits" / "full"),
    )
    Path("copy.yaml").write_text(plan.yaml())
    assert SweepFolder.open(prepare_sweep("copy.yaml", "sweep").path).cells() == cells
    (other,) = Plan.read(MODEL | {"data": ["mnist"], "audits": {"a": {"data": "digits"}}}).cells()
    assert other.calls(Path("run"))[0].arguments["data"] == "digits"


def test_a_model_has_settings_and_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Models that differ in their weights have different names; ``exclude`` names a model as the plan does."""
    monkeypatch.chdir(tmp_path)
    for name in "ab":
        (tmp_path / f"{name}.pt").write_bytes(b"")
    normalised = {"model": "wrn-34-10", "weights": "a.pt", "mean": [0.5, 0.4, 0.3], "std": [0.2, 0.2, 1]}
    models = [
        normalised | {"set": {"stem": "3x3", "depth": 28}},
        {"model": "wrn-34-10", "weights": "b.pt"},
        {"model": "wrn-34-10", "weights": "b.pt", "name": "ours", "outputs": "probabilities", "width": 0.5},
        "a.pt",
    ]
    plan = Plan.read({"models": models, "data": ["digits", "mnist"], "exclude": [{"model": "ours", "data": "mnist"}]})
    cells = plan.cells()
    names = [f"{model}-{data}" for model in ("wrn-34-10-a", "wrn-34-10-b", "ours", "a") for data in ("digits", "mnist")]
    names.remove("ours-mnist")
    assert [cell.name for cell in cells] == names
    found = [cell.calls(Path("run"))[0].arguments for cell in cells]
    weights = {name: str(tmp_path / f"{name}.pt") for name in "ab"}
    shared = {"model": "wrn-34-10", "data": "digits", "device": "cpu", "resume": True}
    assert found[0] == {
        **shared,
        "weights": weights["a"],
        "mean": "0.5,0.4,0.3",
        "std": "0.2,0.2,1.0",
        "model_set": ["stem=3x3", "depth=28"],
    }
    assert found[2] == shared | {"weights": weights["b"]}
    assert found[4] == shared | {"weights": weights["b"], "outputs": "probabilities", "width": 0.5}
    assert found[5] == shared | {"model": weights["a"]}
    for cell in cells:
        cell.calls(Path("run"))[0].bound(FUNCTIONS.load("audit"))
    Path("copy.yaml").write_text(plan.yaml())
    assert SweepFolder.open(prepare_sweep("copy.yaml", "sweep").path).cells() == cells
    check_refused(
        "with another model_settings",
        prepare_sweep,
        {"models": [normalised | {"mean": [0, 0, 0]}], "data": ["digits"]},
        "sweep",
    )


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ({"recipes": []}, "plan: recipes or models must be given, such as recipes: [at]"),
        (MODEL | {"data": []}, "plan: models need data, such as data: [cifar10]"),
        (MODEL | {"audits": {}}, "plan: models need audits, such as audits: {full: {attack: autoattack}}"),
        (MODEL | {"models": ["gone.pt"]}, "gone.pt"),
        (MODEL | {"models": ["resnet19"]}, "unknown model 'resnet19'; did you mean 'resnet18'?"),
        ({"recipes": ["at"], "overrides": [{"model.name": "resnet19"}]}, "unknown model 'resnet19'"),
        (MODEL | {"models": "resnet18"}, "plan: models = 'resnet18' must be a list of models, such as [resnet18]"),
        (MODEL | {"models": [{"model": "resnet18", "weight": "a.pt"}]}, "did you mean 'weights'"),
        (MODEL | {"models": [{"model": "resnet18", "weights": "a.pt"}]}, "'a.pt' must be a file or a run folder"),
        (MODEL | {"models": [{"model": "resnet18", "mean": [0.5]}]}, "mean and std must be given together"),
        (
            MODEL | {"audits": {"full": {"which": "last"}}},
            "audit 'full': the field which applies only to cells that are trained",
        ),
        (MODEL | {"audits": {"full": {"threat": "L2:1", "attack": "nattack"}}}, "does not support L2"),
        (MODEL | {"models": ["timm:resnet18"] * 2}, "the cell resnet18-digits occurs twice"),
        (
            MODEL | {"models": ["timm:resnet18", "resnet18"]},
            'model "timm:resnet18" and "resnet18"; set the name of one model',
        ),
    ],
)
def test_bad_models_are_refused(plan: dict[str, Any], message: str) -> None:
    assert message in error(**plan)


def test_the_recipe_of_a_cell_is_that_of_its_job() -> None:
    (cell,) = Plan.read(DIGITS | {"budgets": ["short"], "seeds": [3], "overrides": [{"optimizer.lr": 1e-05}]}).cells()
    recipe = read_recipe(cell)
    assert (recipe.name, recipe.seed, recipe.data.name, recipe.optimizer["lr"]) == ("at-short", 3, "digits", 1e-05)  # type: ignore[index]


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ({"recipe": ["at"]}, "plan has no field 'recipe'; did you mean 'recipes'?"),
        ({"recipes": ["att"], "data": []}, "unknown recipe 'att'; did you mean 'at'?"),
        ({"recipes": ["att"]}, "cell att-digits-seed0: unknown recipe 'att'; did you mean 'at'?"),
        ({"recipes": "at"}, "plan: recipes = 'at': Input should be a list"),
        ({"budgets": ["shirt"]}, "cell at-shirt-digits-seed0: unknown budget 'shirt'; did you mean 'short'?"),
        ({"seeds": [-1]}, "plan: seeds.0 = -1: Input should be greater than or equal to 0"),
        ({"seeds": [0, 1, 0]}, "plan: the cell at-digits-seed0 occurs twice; give each value once"),
        ({"data": ["digitz"]}, "unknown data set 'digitz'; did you mean 'digits'?"),
        ({"overrides": [{"modle.width": 1}]}, "recipe has no field 'modle'; did you mean 'model'?"),
        ({"overrides": [{"seed": 1}]}, "plan: seed is not an override; use the field seeds of the plan"),
        ({"set": {"data.name": "x"}}, "plan: data.name is not an override; use the field data of the plan"),
        ({"overrides": [{"threat": "a:b"}, {"threat": "a/b"}]}, "two cells have the name at-digits-threat-a_b-seed0"),
        ({"audits": ["full"]}, "audits = ['full'] must map names to options of an audit"),
        ({"audits": {"a/b": {}}}, "the audit name 'a/b' must consist of letters"),
        ({"audits": {"full": 3}}, "audits.full = 3 must be a mapping of options"),
        ({"audits": {"full": {"atack": "pgd"}}}, "audit 'full' has no field 'atack'; did you mean 'attack'?"),
        ({"audits": {"full": {"attack": "pgdd"}}}, "unknown attack 'pgdd'; did you mean 'pgd'?"),
        ({"audits": {"full": {"threat": "Linf:x"}}}, "threat 'Linf:x': radius must be a number such as 8/255"),
        (
            {"audits": {"full": {"batch_size": 8}}},
            "audit 'full': batch_size = 8: must be an integer from 32 to 10,000,000, or None",
        ),
        ({"audits": {"full": {"which": "lats"}}}, "audit 'full': unknown weights 'lats'; did you mean 'last'?"),
        ({"audits": {"full": {"which": "average"}}}, "audit 'full': unknown weights 'average'; known: best, last"),
        ({"audits": {"full": {"data": "nowhere"}}}, "unknown data set 'nowhere'"),
        ({"audits": {"full": {"corruption": "fog"}}}, "corruption and severity must be given together"),
        ({"audits": {"full": {"corruption": "fogg", "severity": 1}}}, "unknown corruption 'fogg'; did you mean 'fog'?"),
        ({"audits": {"full": {"cascade": True, "early_stop": False}}}, "cascade requires early_stop=True"),
        ({"set": {"threat": "L2:1"}, "audits": {"full": {"attack": "spatial-grid"}}}, "does not support"),
        ({"exclude": {"seed": 0}}, "exclude = {'seed': 0} must be a list of partial cells"),
        ({"exclude": [{"sed": 0}]}, "exclude has no field 'sed'; did you mean 'seed'?"),
        ({"exclude": [{"seed": 1}]}, 'exclude {"seed": 1} matches no cell'),
        ({"exclude": [{}]}, "the plan excludes all of its cells; remove a pattern of exclude"),
        ({"seeds": [*range(100_001)]}, "the plan has 100,001 cells; at most 100,000 are accepted"),
    ],
)
def test_bad_plans_are_refused(plan: dict[str, Any], message: str) -> None:
    assert message in error(**plan)


def test_an_attack_must_support_the_threat_of_the_recipe() -> None:
    message = error(set={"threat": "L2:1"}, audits={"full": {"attack": "nattack"}})
    assert message == "attack 'nattack' does not support L2; it supports Linf"
    assert names(set={"threat": "L2:1"}, audits={"full": {"attack": "cw-l2"}}) == ["at-digits-seed0"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"recipes: [at", "is not YAML"),
        (b"- at", "must be a mapping of fields to values"),
        (b"\xff", "is not UTF-8 text"),
        (b"#" * 300_000, "is larger than"),
    ],
)
def test_bad_files_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "plan.yaml"
    file.write_bytes(content)
    check_refused(message, Plan.read, file)


def test_the_copy_of_a_plan_has_the_same_cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text("extends: at\nname: mine\n")
    audits = {"quick": {"attack": ["pgd:steps=2"], "subset": 5}}
    plan = Plan.read(
        {
            "recipes": ["mine.yaml", "at"],
            "data": ["digits"],
            "seeds": [0, 1],
            "audits": audits,
            "exclude": [{"recipe": "mine.yaml", "seed": 1}],
        }
    )
    Path("copy.yaml").write_text(plan.yaml())
    monkeypatch.chdir("/")
    cells = Plan.read(tmp_path / "copy.yaml").cells()
    assert [cell.name for cell in cells] == ["mine-digits-seed0", "at-digits-seed0", "at-digits-seed1"]
    assert cells[0].recipe == str(tmp_path / "mine.yaml")
    assert SweepFolder(tmp_path).cells() == []


def test_a_plan_may_grow_but_not_change(tmp_path: Path) -> None:
    out, plan = tmp_path / "sweep", DIGITS | {"audits": {"quick": {"attack": "fgsm"}}}
    prepare_sweep(plan, out)
    sweep = prepare_sweep(plan | {"seeds": [0, 1]}, out)
    assert [cell.name for cell in sweep.cells()] == ["at-digits-seed0", "at-digits-seed1"]
    check_refused(
        r"contains a cell at-digits-seed0 with another overrides: it was \{\}",
        prepare_sweep,
        plan | {"set": {"epochs": 1}},
        out,
    )
    assert [cell.overrides for cell in sweep.cells()] == [{}, {}]


def test_other_options_of_an_audit_keep_the_training(tmp_path: Path) -> None:
    """The earlier result is moved, that of an unchanged audit is not, and the cell is queued again."""
    audits = {"quick": {"attack": "fgsm"}, "same": {"attack": "pgd"}}
    sweep = prepare_sweep(DIGITS | {"audits": audits}, tmp_path / "sweep")
    (cell,) = sweep.cells()
    training, *_ = Job.read(sweep.task(cell) / JOB).calls
    record(sweep.task(cell), attempt="a", event="start", host="here", process=1, log=0)
    record(sweep.task(cell), attempt="a", event="end", status=0)
    for number, attack in enumerate(("mifgsm", "pgd:steps=3"), 1):
        for name in audits:
            sweep.audit(cell, name).mkdir(parents=True, exist_ok=True)
            (sweep.audit(cell, name) / "what.txt").write_text(f"{name} {number}")
        assert cell_status(sweep, cell).state == ("finished" if number == 1 else "queued")
        changed = DIGITS | {"audits": audits | {"quick": {"attack": attack}}}
        with owned(sweep.task(cell)):
            check_refused("is in use by", prepare_sweep, changed, sweep.path)
        prepare_sweep(changed, sweep.path)
        folder = sweep.run(cell) / "audits"
        moved = folder / ("earlier-quick" if number == 1 else "earlier-quick-2")
        assert (moved / "what.txt").read_text() == f"quick {number}"
        assert not sweep.audit(cell, "quick").exists()
        assert (sweep.audit(cell, "same") / "what.txt").read_text() == f"same {number}"
        (cell,) = sweep.cells()
        first, quick, _ = Job.read(sweep.task(cell) / JOB).calls
        assert (first, quick.arguments["attack"]) == (training, [attack])
    assert cell_status(sweep, cell).state == "queued"


def test_the_files_of_a_recipe_may_not_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("base.yaml").write_text("extends: at\nepochs: 3\n")
    Path("mine.yaml").write_text("extends: base.yaml\ndescription: ours\n")
    plan = DIGITS | {"recipes": ["mine.yaml"]}
    prepare_sweep(plan, "sweep")
    Path("mine.yaml").write_text("extends: base.yaml\ndescription: the same settings\n")
    prepare_sweep(plan | {"seeds": [0, 1]}, "sweep")
    Path("base.yaml").write_text("extends: at\nepochs: 4\n")
    check_refused(r"cell mine-digits-seed0 whose recipe .*mine.yaml had other settings", prepare_sweep, plan, "sweep")


def test_other_folders_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    check_refused("is not empty and contains no sweep", prepare_sweep, DIGITS, tmp_path)
    check_refused("is a file", prepare_sweep, DIGITS, tmp_path / "file")
    check_refused("contains no sweep; start one", SweepFolder.open, tmp_path)


def test_nothing_is_written_for_a_bad_plan(tmp_path: Path) -> None:
    with pytest.raises(ClasswiseError):
        prepare_sweep(DIGITS | {"budgets": ["full", "shirt"]}, tmp_path / "sweep")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"audits": {"own": {"split": "val"}}}, "cell at-photos-seed0, audit own: .*no split 'val'"),
        ({"audits": {"own": {"group": "camera"}}}, "cell at-photos-seed0, audit own: .*'camera'"),
        (
            {"models": ["small-cnn"], "recipes": [], "audits": {"own": {"split": "val", "threat": "Linf:0.1"}}},
            "audit own: .*'val'",
        ),
        ({"set": {"data.options": {"size": 0}}}, "cell at-photos-seed0, training: "),
    ],
)
def test_data_are_opened_before_the_first_training(
    changed: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for split in ("train", "test"):
        for name in ("cat", "dog"):
            (tmp_path / "photos" / split / name).mkdir(parents=True)
            Image.new("RGB", (8, 8)).save(tmp_path / "photos" / split / name / "1.png")
    plan = {"recipes": ["at"], "data": ["photos"], "audits": {"own": {}}}
    prepare_sweep(plan, tmp_path / "whole")
    check_refused(message, prepare_sweep, plan | changed, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_data_that_tasks_will_download_need_not_be_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLASSWISE_DATA", str(tmp_path))
    folder = prepare_sweep({"recipes": ["at"], "data": ["imagenet"], "audits": {"own": {}}}, tmp_path / "out")
    assert [cell.data for cell in folder.cells()] == ["imagenet"]


@pytest.mark.parametrize(
    ("threads", "variable", "used"),
    [(None, "3", "3"), (2, "3", "2"), (None, None, str((os.cpu_count() or 1) // 2 or 1))],
)
def test_tasks_keep_the_number_of_threads(
    threads: int | None, variable: str | None, used: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On which the last bits of a training depend."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if variable is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", variable)
    started = list[dict[str, str]]()
    monkeypatch.setattr(subprocess, "Popen", lambda *_, env, **__: started.append(env))
    Local(workers=2, threads=threads)._start(tmp_path, 0)
    assert started[0]["OMP_NUM_THREADS"] == used


def test_the_plan_of_the_documentation(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "how-to" / "sweeps.md").read_text(encoding="utf-8")
    (tmp_path / "plan.yaml").write_text(text.partition("```yaml\n")[2].partition("```")[0])
    cells = Plan.read(tmp_path / "plan.yaml").cells()
    assert len(cells) == 9
    assert cells[-1].name == "cfa-at-short-cifar10-width0.25-seed2"
    fields = {field.name for field in dataclasses.fields(Plan)}
    assert all(f"| `{name}` |" in text for name in fields)
    own = {field.name for field in dataclasses.fields(AuditSettings)} - {"asked"}
    assert all(f"`{name}`" in text for name in own)
