"""`Evaluation`: the only declaration of what is asked of an audit, a curve, a search, a cell of a sweep, or an item.

Each option states its type, default, unit, help, what it decides, and its form on the command line. Derived from it
are the signatures and docstrings of the functions (`classwise.auditing.run.arguments`), the options of the commands
(`classwise.cli.evaluation`), the keys of a sweep's audits, the settings in the metadata of outcomes, what resumed,
joined and compared audits must agree in, the key of the cache, and the reference page. A new option is one entry
here, and the code that uses it.

Types are text, so that this module imports little: the command line reads it to print its help.
"""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Literal, TypedDict, cast

from classwise.auditing.evaluation.option import Decides, Flag, Option, options_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from classwise.auditing.evaluation.shard import ShardLike, Shards
    from classwise.core.compute.precision import Dtype, Precision
    from classwise.core.compute.repeats import RepeatCount, RepeatRule
    from classwise.core.settings.arguments import BatchSize, Distance, Seconds
    from classwise.core.settings.config import Seed
    from classwise.data.images import Group
    from classwise.threat.text import Grid

GuardMode = Literal["full", "auto", "off"]
"""How many guards an audit runs: all; those within a budget; none."""
Tensors = Literal["logits", "features", "images"]
"""Kinds of tensors that can be saved; each has one row for each image and attack."""

THREAT = Option(
    None,
    Decides.ATTACKED,
    'the ball, such as ``"Linf:8/255"``. None: that of the policy or the run, or the usual one of a named data set.',
    flag=Flag(str, "Threat, such as Linf:8/255.", "NORM:RADIUS", "Attack", "that of the run or the data set"),
    name="threat",
)
ATTACKS = Option(
    None,
    Decides.ATTACKED,
    "the attacks. None: those of the policy, or the suite of the threat.",
    flag=Flag(
        list[str],
        "Attack, such as pgd:steps=50, or with a label, mine=external:build=mine:attack.",
        "[LABEL=]SPEC",
        "Attack",
        "the suite of the threat",
        name="--attack",
    ),
    name="attacks",
)


class Computed(TypedDict, total=False):
    """Options of every evaluation."""

    device: Annotated[
        "str | torch.device | None",
        Option(
            None,
            Decides.SPEED,
            "where to run, such as cpu, cuda or cuda:1. None: where the model is. A module is moved to the device.",
            flag=Flag(str, metavar="DEVICE", panel="Compute", default="cpu"),
        ),
    ]
    precision: Annotated[
        "Precision | Dtype | None",
        Option(
            None,
            Decides.ROWS,
            "of the gradients, a `Precision` or its dtype; success is decided in float32. None: the fastest on the "
            "device (`classwise.core.compute.precision.fastest`); if an audit is resumed, that of the saved audit.",
            flag=Flag(
                str,
                "Precision of gradients; auto is bfloat16 on hardware with fast bfloat16 products, else float32.",
                "auto|bfloat16|float32",
                "Evaluation details",
                default="auto",
                absent="auto",
            ),
            stored="Mapping[str, bool | int | float | str]",
        ),
    ]
    batch_size: Annotated[
        "BatchSize | None",
        Option(
            None,
            Decides.ROWS,
            "images on the device at once, at least 32 if given. Results repeat bit for bit at one batch size and "
            "precision. None: as many as there are, in steps of 32, up to 128, on a GPU 128 to 1024, and of images "
            "above 64 x 64 pixels not more than fit; if an audit is resumed, that of the saved audit.",
            flag=Flag(int, "Images per batch.", "N", "Compute", "128 (CPU), 1024 (GPU), or all", least=1),
            stored="int | None",
        ),
    ]
    seed: Annotated[
        "Seed",
        Option(
            0,
            Decides.ROWS,
            "seed of the random numbers of the attacks, and of samples of the images.",
            flag=Flag(int, "Seed of the attacks and of --subset.", "N", "Compute"),
        ),
    ]
    unique: Annotated[
        "bool",
        Option(
            False,
            Decides.ESTIMATE,
            "evaluate each image once: of images with equal pixels and labels the first one. Duplicates are no further "
            "evidence about new images, and make intervals too narrow.",
            flag=Flag(bool, "Leave out repetitions of an image with its label.", panel="Data"),
            texts={True: "each image once", False: "with duplicates"},
        ),
    ]


class Sharded(Computed, total=False):
    """Options of an evaluation that can run in shards."""

    shard: Annotated[
        "ShardLike | None",
        Option(
            None,
            Decides.SPEED,
            'evaluate one shard of the images, such as ``"7/40"``; ``out`` is ``.../shards/007-of-040``.',
        ),
    ]
    shards: Annotated[
        "Shards | None",
        Option(
            None,
            Decides.SPEED,
            "merge this number of finished shards in ``out``; on a CPU, with the bits of an evaluation without shards.",
        ),
    ]


class Evaluation(Sharded, total=False):
    """What is asked of an audit, beside the model, the images, the threat and the attacks.

    It is a TypedDict so that type checkers know the keywords of `audit` (PEP 692). Nothing changes one: other values
    make another one, as `complete` does for the plan (`classwise.auditing.run.plan.Plan`).
    """

    early_stop: Annotated[
        "bool",
        Option(
            True,
            Decides.ATTACKED,
            "stop attacking an image at the first success. False: a start does not end at a success, and its "
            "last iterate counts.",
            flag=Flag(
                bool,
                "Stop an attack at its first success, or run all steps (for confusion figures).",
                panel="Evaluation details",
            ),
            texts={True: "an attack stops at its first success", False: "an attack runs all its steps"},
        ),
    ]
    cascade: Annotated[
        "bool | None",
        Option(
            None,
            Decides.ATTACKED,
            "run each attack on the survivors of the previous attacks only, so that none is measured separately. None: "
            "True if ``attacks`` contains a named suite, such as ``autoattack``.",
            flag=Flag(
                bool,
                "Run each attack only on images that the attacks before it left correct.",
                panel="Evaluation details",
                shown="on for autoattack and fast",
            ),
        ),
    ]
    settle: Annotated[
        "Distance | None",
        Option(
            None,
            Decides.ESTIMATE,
            'estimate the accuracy under ``attacks="autoattack"`` (`Audit.estimator`) to this distance, such as 0.005: '
            "FAB and Square run on a sample of the survivors of APGD. Requires images in memory. None: every attack on "
            "every image.",
            unit="fraction",
            flag=Flag(
                float,
                "Estimate the accuracy under --attack autoattack from a sample, with overall and worst-class accuracy "
                "known to within this many percentage points.",
                "POINTS",
                "Attack",
                per=100,
                least=0,
                most=100,
            ),
        ),
    ]
    save: Annotated[
        "Tensors | Sequence[Tensors]",
        Option(
            (),
            Decides.RECORD,
            'tensors to save for every attacked image: ``"logits"``, ``"features"``, ``"images"``. A resumed audit '
            "also saves those that it was begun with.",
            flag=Flag(list[str], "Tensors to save.", "logits|features|images", "Records"),
            stored=None,
        ),
    ]
    trace: Annotated[
        "Sequence[int]",
        Option(
            (),
            Decides.RECORD,
            "indices of the images whose confidences are recorded step by step; of a resumed audit also those that it "
            "was begun with.",
            flag=Flag(list[int], "Index of an image whose confidences are recorded step by step.", "N", "Records"),
            stored=None,
        ),
    ]
    repeats: Annotated[
        "RepeatCount",
        Option(
            1,
            Decides.VERDICTS,
            "number of passes that decide whether an image is correct, each with new random numbers of the model; for "
            "models with random outputs.",
            flag=Flag(
                int,
                "For models with random outputs: passes that decide whether an image is correct.",
                "PASSES",
                "Evaluation details",
            ),
        ),
    ]
    repeat_rule: Annotated[
        "RepeatRule",
        Option(
            "majority",
            Decides.VERDICTS,
            '``"majority"``: an image is correct if more than half of the passes are; ``"all"``: if all are.',
            flag=Flag(
                str,
                "An image is correct if more than half of the passes of --repeats are, or all.",
                "majority|all",
                "Evaluation details",
            ),
        ),
    ]
    grid: Annotated[
        "Grid | None",
        Option(
            None,
            Decides.ATTACKED,
            '``"8bit"``: adversarial images are rounded to multiples of 1/255 inside the ball before success is '
            "decided, as stored images are.",
            flag=Flag(
                str,
                "Round adversarial images to multiples of 1/255 in the ball before success is decided, as stored "
                "images are.",
                "8bit",
                "Evaluation details",
            ),
        ),
    ]
    guards: Annotated[
        "GuardMode",
        Option(
            "auto",
            Decides.RECORD,
            '``"auto"`` limits the guards to 20 % of the passes of the attacks, ``"full"`` runs all, ``"off"`` none. '
            "Outcomes do not depend on it.",
            flag=Flag(
                str,
                "Checks for known pitfalls: all, those that cost at most 20 % more passes, or none.",
                "full|auto|off",
                "Compute",
            ),
            stored=None,
        ),
    ]
    policy: Annotated[
        "str | Path | None",
        Option(
            None,
            Decides.RECORD,
            "file of a `classwise.auditing.criteria.policy.Policy`, whose SHA-256 is recorded before the first attack. "
            "It is not recorded if the folder, or another audit of the same model and images beside it, was begun "
            "without it. Its criteria are decided by the command line, `classwise.evidence` and "
            "`classwise.testing.assert_robust`.",
            flag=Flag(
                Path,
                "Record the SHA-256 of this policy before the first attack; decide its criteria as --fail-if, with "
                "status 3 if the audit is not as required.",
                "FILE",
                "Records",
            ),
            stored="str | None",
        ),
    ]
    group: Annotated[
        "Group | None",
        Option(
            None,
            Decides.OUTPUT,
            'report by group instead of class: ``"superclass"``, ``"frequency"`` (head, middle and tail of the classes '
            "by the training images of a run), a column of the data, or a value for each image.",
            flag=Flag(str, "Group by a column, superclass or frequency.", "COLUMN", "Data", "the class"),
        ),
    ]
    max_time: Annotated[
        "Seconds | None",
        Option(
            None,
            Decides.ESTIMATE,
            "seconds after which no further image is started. Tables of an incomplete audit contain bounds.",
            unit="seconds",
            flag=Flag(
                float,
                "Time limit in minutes, after which no further image begins; the result may be incomplete.",
                "MINUTES",
                "Compute",
                "none",
                per=1 / 60,
                least=0,
            ),
            stored=None,
        ),
    ]


OPTIONS: Mapping[str, Option] = MappingProxyType({**options_of(Evaluation)})
"""The options by name."""
FLAGS: Mapping[str, Option] = MappingProxyType(
    {"attacks": ATTACKS, "threat": THREAT} | {name: option for name, option in OPTIONS.items() if option.flag}
)
"""The options that the command line and plans of sweeps have."""
ON_COMMAND_LINE: Mapping[str, str] = MappingProxyType(
    {name: f"--{option.key.replace('_', '-')}" for name, option in FLAGS.items()}
    | {"shard": "--shard", "groups": "--group"}
)
"""The options of the command line by the names of the settings that they decide."""
STORED: Mapping[str, Option] = MappingProxyType({name: option for name, option in OPTIONS.items() if option.is_stored})
"""The options whose values are in the metadata of the outcomes."""


def complete(options: Evaluation) -> Evaluation:
    """All options: those given, and the defaults of the others.

    Example:
        >>> complete({"seed": 3})["early_stop"]
        True
    """
    defaults = {name: option.default for name, option in OPTIONS.items()}
    given = {**defaults, **options}
    save, trace = given["save"], given["trace"]
    given |= {"save": (save,) if isinstance(save, str) else tuple(save), "trace": tuple(map(int, trace))}
    return cast("Evaluation", given)
