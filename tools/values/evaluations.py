"""Parts that evaluate: attacks, audits, curves, searches, comparisons and statistics."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from typing import Any

import numpy as np
import torch
from tools.values.inputs import Cases, Changed, command, function, images, network, predictions, sign_step
from tools.values.readings import attacked, audit

import classwise as cw

THREATS = ("Linf:0.05", "L2:0.3", "L1:1.5", "recolour:0.1", "spatial:0.5")
EXACT, FUSED = cw.Precision(), cw.Precision(channels_last=True)
PRECISIONS = {"exact": EXACT, "fused": FUSED, "bfloat16": cw.Precision(dtype="bfloat16", channels_last=True)}
SPECS = """
apgd-ce:steps=8,restarts=2 apgd-ce:steps=4,eot_iter=2 apgd-ce:steps=6,objective=dlr apgd-dlr:steps=8
apgd-t:steps=6,targets=2 cw:steps=8,binary_search_steps=2 cw:steps=8,binary_search_steps=2,fast=true
cw-l2:steps=20,binary_search_steps=2,learning_rate=0.05 cw-l2:steps=20,fast=true difgsm:steps=5 difgsm:steps=5,decay=0.9
fab:steps=6,restarts=2 fab-t:steps=6,targets=2 fgsm fgsm:random_init=uniform md:steps=8 mifgsm:steps=5 n-fgsm
nattack:steps=3,samples=20 pgd:steps=5,restarts=2 pgd:steps=5,objective=margin pgd:steps=5,objective=dlr
pgd:steps=5,objective=kl pgd-t:steps=4,targets=2 pma:steps=6,restarts=2 spatial-grid:rotations=5,translations=3
spatial-grid:samples=5 spatial-pgd:steps=3,restarts=2 square:steps=30,restarts=2 square:steps=30,rescale_schedule=true
tpgd:steps=5,inverse_temperature=10 tpgd:steps=5,inverse_temperature=5,arithmetic=paper
"""
"""Settings of the attacks; an attack without any runs with its defaults."""


def attack(name: str) -> Cases:
    """An attack under every threat that it supports: at every precision, and without early stop.

    Further settings run under the first threat only.
    """
    threats = [text for text in THREATS if text.partition(":")[0] in cw.ATTACKS.load(name).norms]
    surrogate = {"name": "transfer", "surrogate": network("lenet", 0.25), "attack": "pgd:steps=5"}
    listed = [spec for spec in SPECS.split() if spec.partition(":")[0] == name]
    others: dict[str, list[Any]] = {"external": [sign_step], "transfer": [surrogate]}
    kinds: dict[str, Any] = {kind: {"precision": precision} for kind, precision in PRECISIONS.items()}
    kinds |= {"all steps": {"precision": EXACT, "early_stop": False}}
    return {
        f"{number}/{threat}/{kind}": partial(_attack, threat, spec, save="images", guards="off", **options)
        for number, spec in enumerate(others.get(name, listed or [name]))
        for threat in threats[: None if number == 0 else 1]
        for kind, options in kinds.items()
    }


def _attack(threat: str, spec: Any, **options: Any) -> object:
    return attacked(cw.audit(network(), images(), threat, [spec], **options))


def audited(threat: Any = "Linf:0.05", attacks: Any = ("pgd:steps=5", "fgsm", "tpgd"), **options: Any) -> cw.Audit:
    """An audit of the network."""
    options = {"model": network(), "data": images(), "precision": EXACT, **options}
    return cw.audit(threat=threat, attacks=attacks, **options)


def audits() -> Cases:
    """The options of an audit."""
    data = images()
    batches = [(data.pixels()[start : start + 20], data.y[start : start + 20]) for start in range(0, len(data), 20)]
    parents = cw.Images(data.x, data.y, data.class_names, superclasses=[0, 1] * 5, superclass_names=["even", "odd"])
    return {
        "defaults": partial(audited, "Linf:0.1", None, guards="full"),
        "last iterate": partial(audited, early_stop=False, save=("logits", "features"), trace=[0, 5]),
        "cascade": partial(audited, cascade=True, save="logits"),
        "radii of images": partial(audited, cw.Threat("Linf", torch.linspace(0.01, 0.1, len(data)))),
        "values as groups": partial(audited, group=[number % 3 for number in range(len(data))]),
        "superclasses": partial(audited, data=parents, group="superclass"),
        "stream": partial(audited, data=batches, guards="full"),
        "seed and batch": partial(audited, seed=3, batch_size=32),
        "no gradients": partial(audited, model=Changed(torch.detach), attacks=["pgd:steps=2", "square:steps=20"]),
        "clean": partial(audited, None, "clean"),
        "folder": lambda: [audited(out="audit"), cw.Audit.load("audit"), audited(out="audit", resume=True)],
        "corruptions": lambda: function("audit_corruptions")(network(), data, severities=[3]).by_class(),
    }


def suites() -> Cases:
    """Named suites, and AutoAttack on a sample."""
    few: dict[str, Any] = {"data": images(24), "guards": "off"}
    return {
        "fast": partial(audited, attacks="fast"),
        **{threat: partial(audited, threat, "autoattack", **few) for threat in ("Linf:0.05", "L2:0.3", "L1:1.5")},
        "settle": partial(audited, "Linf:0.03", "autoattack", data=images(100), settle=0.1),
    }


def guards() -> Cases:
    """Audits of networks with a pitfall, with all guards and with those in the budget."""
    pitfalls = {
        "probabilities": Changed(lambda z: z.log_softmax(1).exp()),
        "rounded": Changed(lambda z: (z * 20).round() / 20),
        "saturated": Changed(torch.tanh),
        "batch": Changed(lambda z: z - z.mean(0)),
        "permuted": Changed(lambda z: z.roll(1, 1)),
        "infinite": Changed(lambda z: torch.where(z.max(1, keepdim=True)[0] > 8, torch.inf, z)),
        "reversed": Changed(pixels=lambda x: 2 * x.detach() - x),
        "levels": Changed(pixels=lambda x: x + ((x * 8).round() / 8 - x).detach()),
    }
    options: dict[str, Any] = {"attacks": ["pgd:steps=10", "square:steps=20", "fgsm"], "data": images(64)}
    return {
        f"{name}, {mode}": partial(_pitfall, model, guards=mode, **options)
        for name, model in pitfalls.items()
        for mode in ("full", "auto")
    }


def _pitfall(model: torch.nn.Module, **options: Any) -> object:
    found = audit(audited(model=cw.load_model(model, outputs="logits"), **options))
    return {name: found[name] for name in ("outcomes", "warnings", "guards")}


def radii(norm: Any = "Linf", attacks: Any = ("pgd:steps=4", "fgsm"), highest: float = 0.2, **options: Any) -> cw.Curve:
    """A robustness curve of the network."""
    options = {"rounds": 4, "precision": EXACT, **options}
    return cw.robustness_curve(network(), images(), norm, attacks, highest=highest, **options)


def curves() -> Cases:
    """Robustness curves."""
    return {
        "Linf": partial(radii, precision=FUSED),
        "L2": partial(radii, "L2", "pgd:steps=4", 1.0, seed=2),
        "L1": partial(radii, "L1", "apgd-ce:steps=5", 4.0),
        "folder": lambda: [radii(out="curve"), cw.Curve.load("curve")],
    }


def shards() -> Cases:
    """An audit and a curve in shards, which are incomplete, and merged."""
    kinds: dict[str, Any] = {"audit": audited, "curve": radii}
    parts = {
        f"{kind} {number}": partial(evaluate, out=f"{kind}/shards/00{number}-of-003", shard=f"{number}/3")
        for kind, evaluate in kinds.items()
        for number in (1, 2, 3)
    }
    return parts | {kind: partial(evaluate, out=kind, shards=3) for kind, evaluate in kinds.items()}


def searches() -> Cases:
    """Searches for the worst class."""
    search = partial(cw.find_worst_class, network(), images(120), precision=EXACT)
    suite = ["apgd-ce:steps=5", "pgd:steps=8", "square:steps=20"]
    return {
        "exact": partial(search, "Linf:0.05", suite),
        "tolerant": partial(search, "Linf:0.04", suite, tolerance=0.05, confidence=0.8, seed=1, out="search"),
        "L2": partial(search, "L2:0.3", ["fgsm", "pgd:steps=6"]),
    }


def comparisons() -> Cases:
    """Comparisons and a leaderboard, most of them of simulated predictions."""
    ours, theirs = ([cw.Audit(predictions(seed, rate)) for seed in (1, 2, 3)] for rate in (0.6, 0.5))
    many = [cw.Audit(predictions(seed, 0.5, (20,) * 30)) for seed in (4, 5)]
    models = {str(seed): cw.Audit(predictions(seed, 0.4 + seed / 20)) for seed in range(4)}
    levels = {text: audited(f"Linf:{text}", ["fgsm"], guards="off") for text in ("0.02", "0.04")}
    halves = {name: audited(out=f"{name}/shards/001-of-002", shard="1/2") for name in ("first", "second")}
    return {
        "one seed": partial(cw.compare, {"ours": ours[0], "theirs": theirs[0]}),
        "one attack": partial(cw.compare, {"ours": ours[0], "theirs": theirs[0]}, attack="first", confidence=0.9),
        "seeds": partial(cw.compare, {"ours": ours, "theirs": theirs, "one": ours[0]}),
        "many classes": partial(cw.compare, {"first": many[0], "second": many[1]}, attack="clean"),
        "incomplete": partial(cw.compare, halves, allow_incomplete=True),
        "radii": lambda: cw.compare(levels, across="threat").table,
        "board": partial(cw.board, models),
        "audits": lambda: {"ours": ours[0], "many": many[0]},
    }


def processes() -> Cases:
    """A training and an audit by two processes of torchrun."""
    small = ("model.name=small-cnn", "model.width=0.1", "data.subset=120", "attack.steps=2", "data.validation=0.2")
    train = ("train", "at", "--data=digits", "--out=run", "--epochs=1", *(f"--set={text}" for text in small))
    evaluate = ("audit", "run", "--subset=40", "--attack=pgd:steps=3", "--precision=float32", "--out=audit")
    start = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone", "-m", "classwise")

    def launched(*words: str) -> int:
        return subprocess.run([*start, *words], capture_output=True, check=False).returncode  # noqa: S603

    return {
        "training": lambda: [launched(*train), cw.Run.open("run")],
        "audit": lambda: [launched(*evaluate), cw.Audit.load("audit")],
    }


def commands() -> Cases:
    """Commands that evaluate."""
    torch.save(network("small-cnn", 0.25).state_dict(), "weights.pt")
    model = ("small-cnn", "--width=0.25", "--weights=weights.pt", "--data=digits", "--subset=40", "--precision=float32")
    threat = ("--threat=Linf:0.05", "--attack=pgd:steps=3", "--attack=fgsm")
    run = partial(command, without=("classes", "sentence"))
    return {
        "audit": partial(run, "audit", *model, *threat, "--out=audit", "--fail-if=worst(all) < 0.9"),
        "audit loaded": partial(cw.Audit.load, "audit"),
        "shards": partial(run, "audit", *model, *threat, "--out=merged", "--shards=2", "--on=local"),
        "shards loaded": partial(cw.Audit.load, "merged"),
        "curve": partial(run, "curve", *model, *threat, "--rounds=3", "--out=curve"),
        "worst-class": partial(run, "worst-class", *model, *threat),
    }


FUNCTIONS = """
stats.intervals wilson clopper_pearson | right of
stats.intervals lowest_interval class_intervals | first
stats.metrics.lowest minimum worst_estimate best_estimate worst20_estimate | first
stats.worst_class possibly_worst possibly_best significantly_above | first
stats.paired mcnemar paired_p_value | only_first only_second
stats.paired paired_interval tango | only_first only_second count
stats.paired class_differences overall_difference difference_of_minima | pairs
stats.paired holm sidak_adjusted | p_values
stats.seeds mean_over_seeds worst_over_seeds | correct labels classes
stats.seeds worst_difference_over_seeds | correct better labels classes
stats.metrics.averages overall_estimate beyond_mean | first
stats.metrics.variance unbiased_variance unbiased_estimate cv_estimate | first
stats.metrics.variance deviation_difference variance_ratio | first second
stats.metrics.discrepancy mcd_estimate | first
stats.metrics.discrepancy discrepancy_difference discrepancy_ratio | first second
stats.stratified class_mean | first
stats.resampling halves | labels
stats.resampling resampled_accuracies | correct labels classes
stats.ranks pearson spearman kendall | accuracy other
stats.ranks spearman_matrix kendalls_w | accuracies
stats.pareto pareto_front | accuracies label
metrics overall_micro | first
metrics overall_macro class_variance max_class_discrepancy worst_class | accuracy
metrics worst_share robust_classes vulnerable_classes | accuracy share
metrics nrr hmw | share robust
metrics class_accuracy | labels row classes
metrics confusion_rates misclassified symmetry | confusion
metrics superclass_leakage | confusion parents
metrics confidence_variance | probabilities
"""
"""Functions of fixed outcomes: their module, their names and the names of their arguments. Edit modules that move."""


def statistics() -> Cases:
    """The functions of `FUNCTIONS`."""
    tables = [predictions(seed) for seed in range(3)]
    counts, labels = [table.counts("first") for table in tables], tables[0].labels
    correct = np.stack([table.correct("first") for table in tables])
    accuracies = np.stack([part.accuracy for part in counts])
    pairs = function("stats.counts:PairedCounts").from_labels(labels, correct[0], correct[1], 5)
    probabilities = np.random.default_rng(0).dirichlet([1.0] * 5, 7)
    values: dict[str, Any] = {"first": counts[0], "second": counts[1], "pairs": pairs, "labels": labels, "classes": 5}
    values |= {"correct": correct, "row": correct[0], "better": ~correct[::-1] | correct, "label": 0, "share": 0.4}
    values |= {"accuracies": accuracies, "accuracy": accuracies[0], "other": accuracies[1], "robust": 0.3}
    values |= {"only_first": [1, 5, 9], "only_second": [4, 5, 0], "count": [20, 30, 40], "p_values": [0.01, 0.2, 0.03]}
    values |= {"confusion": tables[0].confusion("first"), "parents": [0, 0, 1, 1, 2], "probabilities": probabilities}
    values |= {"right": [0, 3, 8, 20], "of": [20] * 4}
    cases: dict[str, Any] = {}
    for line in FUNCTIONS.strip().splitlines():
        (module, *names), arguments = (text.split() for text in line.split("|"))
        given = tuple(values[name] for name in arguments)
        cases |= {f"{module}:{name}": partial(_computed, f"{module}:{name}", given) for name in names}
    return cases


def _computed(name: str, given: tuple[Any, ...]) -> object:
    return function(name)(*given)
