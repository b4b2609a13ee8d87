"""What to cite: the papers behind a recipe or a part, and their BibTeX."""

from __future__ import annotations

from dataclasses import dataclass

from classwise.errors import unknown
from classwise.training import AVERAGERS, OBJECTIVES, OPTIMISERS, RATES, SCHEDULES, UPDATES
from classwise.training.recipe import Recipe, recipe_names


@dataclass(frozen=True)
class Paper:
    """A paper.

    Args:
        key: its BibTeX key.
        authors: family name first, joined by "and".
        title: the title.
        venue: the proceedings or the journal.
        year: when it appeared.
        kind: the BibTeX kind of entry.
    """

    key: str
    authors: str
    title: str
    venue: str
    year: int
    kind: str = "inproceedings"

    def bibtex(self) -> str:
        """The entry."""
        place = {"inproceedings": "booktitle", "article": "journal"}[self.kind]
        fields = {"author": self.authors, "title": f"{{{self.title}}}", place: self.venue, "year": str(self.year)}
        lines = ",\n".join(f"  {name} = {{{value}}}" for name, value in fields.items())
        return f"@{self.kind}{{{self.key},\n{lines}\n}}"


_CVPR = "IEEE/CVF Conference on Computer Vision and Pattern Recognition"
_ICLR = "International Conference on Learning Representations"
_ICML = "International Conference on Machine Learning"
_NEURIPS = "Advances in Neural Information Processing Systems"

PAPERS = {
    paper.key: paper
    for paper in (
        Paper(
            "madry2018towards",
            "Madry, Aleksander and Makelov, Aleksandar and Schmidt, Ludwig and Tsipras, Dimitris and Vladu, Adrian",
            "Towards Deep Learning Models Resistant to Adversarial Attacks",
            _ICLR,
            2018,
        ),
        Paper(
            "goodfellow2015explaining",
            "Goodfellow, Ian J. and Shlens, Jonathon and Szegedy, Christian",
            "Explaining and Harnessing Adversarial Examples",
            _ICLR,
            2015,
        ),
        Paper(
            "zhang2019theoretically",
            "Zhang, Hongyang and Yu, Yaodong and Jiao, Jiantao and Xing, Eric P. and El Ghaoui, Laurent "
            "and Jordan, Michael I.",
            "Theoretically Principled Trade-off between Robustness and Accuracy",
            _ICML,
            2019,
        ),
        Paper(
            "wei2023cfa",
            "Wei, Zeming and Wang, Yifei and Guo, Yiwen and Wang, Yisen",
            "CFA: Class-wise Calibrated Fair Adversarial Training",
            _CVPR,
            2023,
        ),
        Paper(
            "wu2020adversarial",
            "Wu, Dongxian and Xia, Shu-Tao and Wang, Yisen",
            "Adversarial Weight Perturbation Helps Robust Generalization",
            _NEURIPS,
            2020,
        ),
        Paper(
            "wong2020fast",
            "Wong, Eric and Rice, Leslie and Kolter, J. Zico",
            "Fast is better than free: Revisiting adversarial training",
            _ICLR,
            2020,
        ),
        Paper(
            "dejorge2022make",
            "de Jorge, Pau and Bibi, Adel and Volpi, Riccardo and Sanyal, Amartya and Torr, Philip H. S. "
            "and Rogez, Gr{\\'e}gory and Dokania, Puneet K.",
            "Make Some Noise: Reliable and Efficient Single-Step Adversarial Training",
            _NEURIPS,
            2022,
        ),
        Paper(
            "rice2020overfitting",
            "Rice, Leslie and Wong, Eric and Kolter, J. Zico",
            "Overfitting in adversarially robust deep learning",
            _ICML,
            2020,
        ),
        Paper(
            "izmailov2018averaging",
            "Izmailov, Pavel and Podoprikhin, Dmitrii and Garipov, Timur and Vetrov, Dmitry and Wilson, Andrew Gordon",
            "Averaging Weights Leads to Wider Optima and Better Generalization",
            "Conference on Uncertainty in Artificial Intelligence",
            2018,
        ),
        Paper(
            "loshchilov2017sgdr",
            "Loshchilov, Ilya and Hutter, Frank",
            "SGDR: Stochastic Gradient Descent with Warm Restarts",
            _ICLR,
            2017,
        ),
        Paper(
            "kingma2015adam",
            "Kingma, Diederik P. and Ba, Jimmy",
            "Adam: A Method for Stochastic Optimization",
            _ICLR,
            2015,
        ),
        Paper(
            "smith2017cyclical",
            "Smith, Leslie N.",
            "Cyclical Learning Rates for Training Neural Networks",
            "IEEE Winter Conference on Applications of Computer Vision",
            2017,
        ),
    )
}
"""Every paper by its key."""

SOURCES: dict[str, tuple[str, ...]] = {
    "standard": (),
    "at": ("madry2018towards",),
    "trades": ("zhang2019theoretically",),
    "ccm": ("wei2023cfa",),
    "ccr": ("wei2023cfa",),
    "vector-beta": (),
    "none": (),
    "swa": ("izmailov2018averaging",),
    "ema": (),
    "fawa": ("wei2023cfa",),
    "fawa-chart": ("wei2023cfa",),
    "fawa-iut": ("wei2023cfa",),
    "plain": (),
    "awp": ("wu2020adversarial",),
    "sgd": (),
    "adam": ("kingma2015adam",),
    "constant": (),
    "step": (),
    "one-cycle": ("rice2020overfitting",),
    "cosine": ("loshchilov2017sgdr",),
    "cyclic": ("smith2017cyclical", "wong2020fast"),
    "three-stage": ("wong2020fast",),
    "pgd": ("madry2018towards",),
    "fgsm": ("goodfellow2015explaining",),
    "n-fgsm": ("dejorge2022make",),
}
"""The papers behind each part that a recipe names; those of none are our own or common property."""


def papers(name: str) -> list[Paper]:
    """The papers behind a recipe or a part, each once, in the order of the recipe's fields.

    Raises:
        UserError: if there is neither a recipe nor a part of that name.
    """
    if name in recipe_names():
        keys = [key for part in _parts(Recipe.read(name)) for key in SOURCES.get(part, ())]
    elif name in SOURCES:
        keys = list(SOURCES[name])
    else:
        raise unknown("recipe or part", name, [*recipe_names(), *SOURCES])
    return [PAPERS[key] for key in dict.fromkeys(keys)]


def _parts(recipe: Recipe) -> list[str]:
    """The names of the parts that decide the recipe's numbers, the single-step attack's rate after it."""
    parts = (recipe.objective, *([] if recipe.objective == "standard" else [recipe.attack]))
    rest = (*recipe.schedules, recipe.update, recipe.optimizer, recipe.rate, recipe.averaging)
    return [part.partition(":")[0] if isinstance(part, str) else str(part.get("name")) for part in (*parts, *rest)]


PARTS = (OBJECTIVES, SCHEDULES, UPDATES, OPTIMISERS, RATES, AVERAGERS)
"""The tables whose every name has its line in `SOURCES`."""
