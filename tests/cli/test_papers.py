from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from PIL import Image

from classwise.models import load_model, save_weights
from classwise.papers import catalogue

from .conftest import Classwise


def test_list(classwise: Classwise) -> None:
    items = classwise("papers", "list", "--json").facts
    assert [item["id"] for item in items] == list(catalogue.items())
    assert all(item["status"] in {"runnable", "covered", "missing"} for item in items)
    assert all(bool(item["command"]) != bool(item["missing"]) for item in items)
    by_id = {item["id"]: item for item in items}
    assert by_id["kdd21/T1"]["scales"] == ["smoke", "small", "reduced", "medium", "full"]
    assert by_id["cfa23/M7"]["covered_by"] == ["schedule ccr", "item cfa23/T2"]
    assert by_id["cfa23/M7"]["command"] == "classwise papers run cfa23/T2"
    assert (by_id["cfa23/Th2"]["scales"], by_id["cfa23/Th2"]["deviations"]) == ([], {})
    assert by_id["cfa23/T1"]["deviations"]["full"][0] == "TRADES: loss scaled: no (paper), yes (here)"
    assert "network: wrn-34-10 (paper), preactresnet18 (here)" in str(by_id["kdd21/T1"]["deviations"]["small"])
    said = classwise("papers", "list", "benz20")
    rows = said.out.splitlines()[1:]
    assert all(item.title in row for item, row in zip(catalogue.paper("benz20").items, rows, strict=True))


def test_list_with_deviations_and_scales_that_were_run(classwise: Classwise, tmp_path: Path) -> None:
    store = tmp_path / "store"
    assert classwise("papers", "run", "cfa23/F1", "--store", store).status == 0
    rows = classwise("papers", "list", "cfa23", "--store", store).out.splitlines()
    assert "scales with a result" in rows[0]
    assert "deviations" in rows[0]
    by_id = {row.partition(" ")[0]: row for row in rows}
    assert "smoke" in by_id["cfa23/F1"]
    assert "no settings" in by_id["cfa23/F1"]
    assert "smoke" not in by_id["cfa23/F4"]
    assert "full 0, medium 5, reduced 10, small " in by_id["cfa23/F4"]
    items = {item["id"]: item for item in classwise("papers", "list", "--store", store, "--json").facts}
    assert set(items) == set(catalogue.items())
    assert items["cfa23/F1"]["run_at"] == ["smoke"]
    assert items["cfa23/M3"]["settings"] == {}
    deviations = {scale: items["cfa23/T1"]["settings"][scale]["deviations"] for scale in ("small", "full")}
    assert {"row": "AT", "setting": "trainings", "paper": "5", "here": "1"} in deviations["small"]
    assert not any(deviation["setting"] == "trainings" for deviation in deviations["full"])
    facts = items["cfa23/T1"]["settings"]["full"]
    assert facts["rows"]["AT + CFA"]["ccm lambda1"] == {"paper": [0.5], "code": None, "here": 0.5}
    assert facts["rows_not_in_the_paper"] == ["TRADES, unscaled"]
    said = classwise("papers", "list", "--store", tmp_path / "stroe")
    command = f"classwise papers run ITEM --store {tmp_path}/stroe"
    assert said.err == f"classwise: there is no store at {tmp_path}/stroe; {command} creates one\n"


def test_commands_of_covered_items(classwise: Classwise) -> None:
    """None shows the item itself; each runs an experiment, shows a data set, or is another command that succeeds."""
    covered = [item for item in catalogue.items().values() if item.status == "covered"]
    others = set()
    for item in covered:
        program, *words = item.command.split()
        assert (program, item.id in words) == ("classwise", False)
        if words[:2] == ["papers", "run"]:
            assert set(words[2:]) <= set(catalogue.runnable())
        elif words[0] != "data":  # needs its files
            others.add(tuple(words))
    assert [words for words in sorted(others) if classwise(*words).status] == []
    assert catalogue.find("cfa23/Th2").command == "classwise papers run cfa23/F1"


def test_show_settings(classwise: Classwise) -> None:
    shown = classwise("papers", "show", "cfa23/T1").out.splitlines()
    decay = next(row for row in shown if row.startswith("averaging decay"))
    assert re.split(" {2,}", decay)[-2:] == ["0.85; authors' code: 0.88", "0.85"]
    assert "deviations from the paper at scale full: 2" in shown
    shown = classwise("papers", "show", "kdd21/T1").out.splitlines()
    (beta,) = (row for row in shown if row.startswith("loss beta") and "MART" in row)
    assert "6 (public code)" in beta
    assert "batch size: 128 (public code), 32 (here)" not in shown
    shown = classwise("papers", "show", "cfa23/T1").out.splitlines()
    assert "  trainings: 5 (paper), 1 (here)" in shown
    assert "  not in the paper: TRADES, unscaled" in shown
    assert "settings: a closed form; nothing is trained" in classwise("papers", "show", "cfa23/F1").out


def test_show(classwise: Classwise) -> None:
    printed = classwise("papers", "show", "kdd21/T3").printed
    assert "HE, 1/T = 50" in printed
    assert "note 1.1 (misprint)" in printed
    assert "scale small" in printed
    shown = classwise("papers", "show", "kdd21/T3", "--json").facts
    assert shown["printed"]["rows"][0]["tot"] == 51.8
    assert len(shown["notes"]) == 9


def test_run_and_page(classwise: Classwise, tmp_path: Path) -> None:
    store = tmp_path / "store"
    printed = classwise("papers", "run", "cfa23/F1", "--store", store).printed
    assert "cfa23/C4 supported by exact computation: " in printed
    assert "note 7.1" in printed
    assert printed.endswith(f"next: classwise papers page cfa23 --store {store}\n")
    said = classwise("papers", "run", "cfa23/F1", "--store", store, "--json")
    (shown,) = json.loads(said.out)
    assert (shown["item"], shown["evidence"]["scale"]) == ("cfa23/F1", "smoke")
    verdict = shown["verdicts"][0]
    assert (verdict["answer"], verdict["text"]) == ("supported", "supported by exact computation")
    said = classwise("papers", "page", "cfa23", "--store", store)
    assert said.out == f"page: {store}/pages/cfa23.html\n"
    assert "Optimal weights" in (store / "pages" / "cfa23.html").read_text(encoding="utf-8")
    lost = tmp_path / "stroe"
    assert (
        classwise("papers", "page", "cfa23", "--store", lost).refusal
        == f"classwise: there is no store at {lost}; classwise papers run ITEM --store {lost} creates one"
    )
    assert not lost.exists()


def test_a_forecast_does_no_work(classwise: Classwise, tmp_path: Path) -> None:
    store = tmp_path / "store"
    words = ["papers", "run", "cfa23/E1", "kdd21/T1", "cfa23/F1", "--store", store, "--estimate"]
    printed = classwise(*words, "--trainings", "2").printed
    assert not store.exists()
    rows = {row.split()[0]: row.split()[1:] for row in printed.splitlines()[2:6]}
    assert rows["cfa23/F1"] == ["0", "0", "0", "0", "0.0", "0.0", "0.00"]
    assert rows["kdd21/T1"][:2] == ["10", "30"]
    assert rows["cfa23/E1"][:2] == ["2", "6"]
    assert rows["total"][:2] == ["10", "30"]  # kdd21/T1 has the training of cfa23/E1
    assert "small-cnn of width 0.1 on digits, float32" in printed
    read = classwise(*words, "--rates", "h100", "--json").facts
    assert read["device"] == "NVIDIA H100 80GB HBM3"
    assert read["items"]["kdd21/T1"]["trainings"] == 5
    assert read["total"]["passes"] == read["items"]["kdd21/T1"]["passes"]


def test_the_list_of_costs_shares_trainings(classwise: Classwise) -> None:
    """Each item adds what those before it do not have: the defences of kdd21/T1 serve T3 and E3 to E7."""
    words = ["papers", "list", "kdd21", "--scale", "smoke", "--estimate", "--rates", "h100"]
    read = classwise(*words, "--json").facts
    added = read["added"]
    assert [added[f"kdd21/{item}"]["trainings"] for item in ("T1", "T3", "E3", "E7")] == [4, 0, 0, 0]
    for key in ("trainings", "passes", "evaluation_passes", "pflop", "hours"):
        assert sum(cost[key] for cost in added.values()) == pytest.approx(read["total"][key])
    said = classwise(*words)
    assert said.out.startswith("forecast at scale smoke on NVIDIA H100")
    assert said.out.index("kdd21/F1 ") < said.out.index("kdd21/T1 ")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["shwo", "kdd21/T1"], "No such command 'shwo'"),
        (["show", "kdd21/T33"], "unknown item 'kdd21/T33'; did you mean 'kdd21/T3'"),
        (["show", "T1"], "item 'T1' needs the name of its paper; write kdd21/T1 or cfa23/T1\n"),
        (
            ["show", "cfa23/C16"],
            "C16 is a claim of cfa23, not an item: CCM alone improves average and worst",
        ),
        (["show", "P2.1"], "item 'P2.1' needs the name of its paper; write benz20/P2.1\n"),
        (["show", "everything"], "unknown item 'everything'; classwise papers list shows all items\n"),
        (["show", "kdd21/T1", "--estimate"], "No such option: --estimate"),
        (["run", "cfa23/F1", "--rates", "h100"], "--rates h100 requires --estimate\n"),
        (["run", "cfa23/F1", "--estimate", "--rates", "h10"], "unknown rates 'h10'; did you mean 'h100'"),
        (["run"], "Missing argument 'ID...'; see classwise papers run --help"),
        (["run", "cfa23/F1", "--scale", "smok"], "unknown scale 'smok'; did you mean 'smoke'"),
        (["run", "cfa23/Th1"], "cfa23/Th1 is a theorem and does not run by itself"),
        (["run", "kdd21/T1", "--model", "a.pt"], "kdd21/T1 does not accept --model or --data; only benz20/P1.2 does"),
        (["run", "cfa23/F1", "--data", "photos"], "cfa23/F1 does not accept --model or --data; only benz20/P1.2 does"),
        (["run", "benz20/P1.2", "--scale", "full"], "benz20/P1.2 needs --model and --data, such as --model resnet50="),
        (["show", "kdd21"], "kdd21 is a paper, not an item; classwise papers list kdd21 shows its items\n"),
        (
            ["run", "benz20/P1.2", "--scale", "full", "--estimate"],
            "benz20/P1.2 evaluates models of yours at scale 'full'",
        ),
        (["run", "iclr21/F4", "--model", "a.pt", "--estimate"], "--model and --data have no effect on --estimate"),
        (["list", "--trainings", "5"], "--trainings requires --estimate\n"),
        (["list", "--scale", "small"], "--scale requires --estimate\n"),
        (["list", "kdd20"], "unknown paper 'kdd20'; did you mean 'kdd21'"),
        (["page", "cfa32"], "unknown paper 'cfa32'; did you mean 'cfa23'"),
    ],
)
def test_bad_input_is_one_line(classwise: Classwise, words: list[str], line: str) -> None:
    assert line in f"{classwise('papers', *words).refusal}\n"


def test_data_that_are_not_there(classwise: Classwise, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which data, and where to put them."""
    monkeypatch.setenv("CLASSWISE_DATA", str(tmp_path / "nothing"))
    monkeypatch.setattr("classwise.data.sets.loading._fetch", _no_network)
    monkeypatch.setattr("classwise.data.sets.loading.data_directories", lambda root: [tmp_path / "nothing"])
    said = classwise("papers", "run", "kdd21/T1", "--scale", "small", "--store", tmp_path / "store")
    assert said.status == 2
    assert said.err.splitlines()[-1].startswith("classwise: cifar10 (train) is not in")
    assert "days" not in said.err
    said = classwise("papers", "run", "kdd21/T1", "--scale", "full", "--store", tmp_path / "store")
    assert "scale full takes days per network on a CPU" in said.err
    formula = classwise("papers", "run", "cfa23/F1", "--scale", "full", "--store", tmp_path / "store")
    assert (formula.status, "days" in formula.err) == (0, False)
    assert said.status == 2


def _no_network(known: object, target: Path, looked: str) -> None:
    from classwise.core.errors import ClasswiseError

    raise ClasswiseError(f"{looked}; get it elsewhere and set CLASSWISE_DATA to its folder")


def test_models_and_images_of_the_user(classwise: Classwise, tmp_path: Path) -> None:
    """A generated model and folder; a missing model or folder is one line."""
    for label, name in enumerate(("ant", "bee")):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(2):
            Image.new("RGB", (16, 16), (200 * label, 90 * number, 30)).save(tmp_path / f"photos/{name}/{number}.png")
    model = tmp_path / "plain.safetensors"
    save_weights(model, load_model("small-cnn", num_classes=2, in_channels=3, width=0.1))
    given = ["--scale", "small", "--store", tmp_path / "store", "--data", tmp_path / "photos"]
    (result,) = classwise("papers", "run", "benz20/P1.2", *given, "--model", model, "--json").facts
    assert [row["name"] for row in result["tables"][0]["rows"]] == [f"{model}, clean", f"{model}, PGD"]
    assert result["tables"][0]["note"].startswith("4 images of 2 classes, Linf:4/255.")
    assert "resnet5" in classwise("papers", "run", "benz20/P1.2", *given, "--model", "resnet5").refusal
