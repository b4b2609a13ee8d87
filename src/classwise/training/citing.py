"""What to cite: the papers behind a recipe, a part, an attack or a suite, and their BibTeX."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from classwise.attacks import ATTACKS
from classwise.attacks.suites import SUITES, members
from classwise.data import AUGMENTATIONS
from classwise.errors import unknown
from classwise.settings import parse_spec
from classwise.training import AVERAGERS, CRITERIA, OBJECTIVES, OPTIMISERS, RATES, REDUCTIONS, SCHEDULES, UPDATES
from classwise.training.recipe import Part, Recipe, recipe_names


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

    def line(self) -> str:
        """The paper in a line of text, authors by their family names."""
        names = [author.partition(",")[0] for author in self.authors.split(" and ")]
        authors = " and ".join(names) if len(names) < 3 else f"{names[0]} et al."
        return f"{authors}, {self.title}, {self.venue}, {self.year}"


_AAAI = "AAAI Conference on Artificial Intelligence"
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
            "carmon2019unlabeled",
            "Carmon, Yair and Raghunathan, Aditi and Schmidt, Ludwig and Duchi, John C. and Liang, Percy",
            "Unlabeled Data Improves Adversarial Robustness",
            _NEURIPS,
            2019,
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
        Paper(
            "wang2020improving",
            "Wang, Yisen and Zou, Difan and Yi, Jinfeng and Bailey, James and Ma, Xingjun and Gu, Quanquan",
            "Improving Adversarial Robustness Requires Revisiting Misclassified Examples",
            _ICLR,
            2020,
        ),
        Paper(
            "zhang2020attacks",
            "Zhang, Jingfeng and Xu, Xilie and Han, Bo and Niu, Gang and Cui, Lizhen "
            "and Sugiyama, Masashi and Kankanhalli, Mohan",
            "Attacks Which Do Not Kill Training Make Adversarial Learning Stronger",
            _ICML,
            2020,
        ),
        Paper(
            "xu2021robust",
            "Xu, Han and Liu, Xiaorui and Li, Yaxin and Jain, Anil and Tang, Jiliang",
            "To Be Robust or to Be Fair: Towards Fairness in Adversarial Training",
            _ICML,
            2021,
        ),
        Paper(
            "lee2024dafa",
            "Lee, Hyungyu and Lee, Saehyung and Jang, Hyemi and Park, Junsung and Bae, Ho and Yoon, Sungroh",
            "DAFA: Distance-Aware Fair Adversarial Training",
            _ICLR,
            2024,
        ),
        Paper(
            "pethick2023revisiting",
            "Pethick, Thomas and Chrysos, Grigorios G. and Cevher, Volkan",
            "Revisiting Adversarial Training for the Worst-Performing Class",
            "Transactions on Machine Learning Research",
            2023,
            "article",
        ),
        Paper(
            "li2023wat",
            "Li, Boqi and Liu, Weiwei",
            "WAT: Improve the Worst-Class Robustness in Adversarial Training",
            _AAAI,
            2023,
        ),
        Paper(
            "sun2023improving",
            "Sun, Chunyu and Xu, Chenye and Yao, Chengyuan and Liang, Siyuan and Wu, Yichao "
            "and Liang, Ding and Liu, Xianglong and Liu, Aishan",
            "Improving Robust Fairness via Balance Adversarial Training",
            _AAAI,
            2023,
        ),
        Paper(
            "medi2025fairtat",
            "Medi, Tejaswini and Jung, Steffen and Keuper, Margret",
            "FAIR-TAT: Improving Model Fairness Using Targeted Adversarial Training",
            "IEEE/CVF Winter Conference on Applications of Computer Vision",
            2025,
        ),
        Paper(
            "cao2019learning",
            "Cao, Kaidi and Wei, Colin and Gaidon, Adrien and Arechiga, Nikos and Ma, Tengyu",
            "Learning Imbalanced Datasets with Label-Distribution-Aware Margin Loss",
            _NEURIPS,
            2019,
        ),
        Paper(
            "cui2019class",
            "Cui, Yin and Jia, Menglin and Lin, Tsung-Yi and Song, Yang and Belongie, Serge",
            "Class-Balanced Loss Based on Effective Number of Samples",
            _CVPR,
            2019,
        ),
        Paper(
            "pang2020boosting",
            "Pang, Tianyu and Yang, Xiao and Dong, Yinpeng and Xu, Kun and Zhu, Jun and Su, Hang",
            "Boosting Adversarial Training with Hypersphere Embedding",
            _NEURIPS,
            2020,
        ),
        Paper(
            "lin2017focal",
            "Lin, Tsung-Yi and Goyal, Priya and Girshick, Ross and He, Kaiming and Doll{\\'a}r, Piotr",
            "Focal Loss for Dense Object Detection",
            "IEEE International Conference on Computer Vision",
            2017,
        ),
        Paper(
            "szegedy2016rethinking",
            "Szegedy, Christian and Vanhoucke, Vincent and Ioffe, Sergey and Shlens, Jon and Wojna, Zbigniew",
            "Rethinking the Inception Architecture for Computer Vision",
            _CVPR,
            2016,
        ),
        Paper(
            "benz2021robustness",
            "Benz, Philipp and Zhang, Chaoning and Karjauv, Adil and Kweon, In So",
            "Robustness May Be at Odds with Fairness: An Empirical Study on Class-wise Accuracy",
            "NeurIPS 2020 Workshop on Pre-registration in Machine Learning",
            2021,
        ),
        Paper(
            "zhang2024fairness",
            "Zhang, Yanghao and Zhang, Tianle and Mu, Ronghui and Huang, Xiaowei and Ruan, Wenjie",
            "Towards Fairness-Aware Adversarial Learning",
            _CVPR,
            2024,
        ),
        Paper(
            "zhi2025codat",
            "Zhi, Hongxin and Yu, Hongtao and Li, Shaomei and Zhao, Xiuming and Wu, Yiteng",
            "Towards Fair Class-wise Robustness: Class Optimal Distribution Adversarial Training",
            "arXiv preprint arXiv:2501.04527",
            2025,
            "article",
        ),
        Paper(
            "jin2025enhancing",
            "Jin, Gaojie and Wu, Sihao and Liu, Jiaxu and Huang, Tianjin and Mu, Ronghui",
            "Enhancing Robust Fairness via Confusional Spectral Regularization",
            _ICLR,
            2025,
        ),
        Paper(
            "tian2021analysis",
            "Tian, Qi and Kuang, Kun and Jiang, Kelu and Wu, Fei and Wang, Yisen",
            "Analysis and Applications of Class-wise Robustness in Adversarial Training",
            "ACM SIGKDD Conference on Knowledge Discovery and Data Mining",
            2021,
        ),
        Paper(
            "rebuffi2021data",
            "Rebuffi, Sylvestre-Alvise and Gowal, Sven and Calian, Dan Andrei and Stimberg, Florian and Wiles, Olivia "
            "and Mann, Timothy A.",
            "Data Augmentation Can Improve Robustness",
            _NEURIPS,
            2021,
        ),
        Paper(
            "li2023data",
            "Li, Lin and Spratling, Michael",
            "Data Augmentation Alone Can Improve Adversarial Training",
            _ICLR,
            2023,
        ),
        Paper(
            "medi2025trix",
            "Medi, Tejaswini and Jung, Steffen and Keuper, Margret",
            "TRIX: Trading Adversarial Fairness via Mixed Adversarial Training",
            "arXiv preprint arXiv:2507.07768",
            2025,
            "article",
        ),
        Paper(
            "croce2020reliable",
            "Croce, Francesco and Hein, Matthias",
            "Reliable Evaluation of Adversarial Robustness with an Ensemble of Diverse Parameter-free Attacks",
            _ICML,
            2020,
        ),
        Paper(
            "croce2021mind",
            "Croce, Francesco and Hein, Matthias",
            "Mind the Box: l1-APGD for Sparse Adversarial Attacks on Image Classifiers",
            _ICML,
            2021,
        ),
        Paper(
            "croce2020minimally",
            "Croce, Francesco and Hein, Matthias",
            "Minimally Distorted Adversarial Examples with a Fast Adaptive Boundary Attack",
            _ICML,
            2020,
        ),
        Paper(
            "andriushchenko2020square",
            "Andriushchenko, Maksym and Croce, Francesco and Flammarion, Nicolas and Hein, Matthias",
            "Square Attack: A Query-efficient Black-box Adversarial Attack via Random Search",
            "European Conference on Computer Vision",
            2020,
        ),
        Paper(
            "li2019nattack",
            "Li, Yandong and Li, Lijun and Wang, Liqiang and Zhang, Tong and Gong, Boqing",
            "NATTACK: Learning the Distributions of Adversarial Examples for an Improved Black-box Attack on "
            "Deep Neural Networks",
            _ICML,
            2019,
        ),
        Paper(
            "carlini2017towards",
            "Carlini, Nicholas and Wagner, David",
            "Towards Evaluating the Robustness of Neural Networks",
            "IEEE Symposium on Security and Privacy",
            2017,
        ),
        Paper(
            "dong2018boosting",
            "Dong, Yinpeng and Liao, Fangzhou and Pang, Tianyu and Su, Hang and Zhu, Jun and Hu, Xiaolin "
            "and Li, Jianguo",
            "Boosting Adversarial Attacks with Momentum",
            _CVPR,
            2018,
        ),
        Paper(
            "xie2019improving",
            "Xie, Cihang and Zhang, Zhishuai and Zhou, Yuyin and Bai, Song and Wang, Jianyu and Ren, Zhou "
            "and Yuille, Alan L.",
            "Improving Transferability of Adversarial Examples with Input Diversity",
            _CVPR,
            2019,
        ),
        Paper(
            "gowal2019alternative",
            "Gowal, Sven and Uesato, Jonathan and Qin, Chongli and Huang, Po-Sen and Mann, Timothy and Kohli, Pushmeet",
            "An Alternative Surrogate Loss for PGD-based Adversarial Testing",
            "arXiv preprint arXiv:1910.09338",
            2019,
            "article",
        ),
        Paper(
            "ma2023imbalanced",
            "Ma, Xingjun and Jiang, Linxi and Huang, Hanxun and Weng, Zejia and Bailey, James and Jiang, Yu-Gang",
            "Imbalanced Gradients: A Subtle Cause of Overestimated Adversarial Robustness",
            "Machine Learning",
            2023,
            "article",
        ),
        Paper(
            "xie2024towards",
            "Xie, Yong and Zheng, Weijie and Huang, Hanxun and Ye, Guangnan and Ma, Xingjun",
            "Towards Million-Scale Adversarial Robustness Evaluation With Stronger Individual Attacks",
            "arXiv preprint arXiv:2411.15210",
            2024,
            "article",
        ),
    )
}
"""Every paper by its key."""

SOURCES: dict[str, tuple[str, ...]] = {
    "standard": (),
    "at": ("madry2018towards",),
    "trades": ("zhang2019theoretically",),
    "mart": ("wang2020improving",),
    "fat": ("zhang2020attacks",),
    "fat-trades": ("zhang2020attacks",),
    "bat": ("sun2023improving",),
    "csr": ("jin2025enhancing",),
    "auto-beta": ("tian2021analysis",),
    "critical-class": ("benz2021robustness",),
    "towards-class": ("benz2021robustness",),
    "lis": (),
    "cmp": (),
    "trix": ("medi2025trix",),
    "frl": ("xu2021robust",),
    "dafa": ("lee2024dafa",),
    "dafa-average": ("lee2024dafa",),
    "cfol": ("pethick2023revisiting",),
    "wat": ("li2023wat",),
    "fair-tat": ("medi2025fairtat",),
    "class-weights": (),
    "inverse": (),
    "effective": ("cui2019class",),
    "robust-error": ("benz2021robustness",),
    "ldam": ("cao2019learning",),
    "margins": (),
    "ccm": ("wei2023cfa",),
    "ccr": ("wei2023cfa",),
    "vector-beta": ("tian2021analysis",),
    "none": (),
    "swa": ("izmailov2018averaging",),
    "ema": ("rebuffi2021data",),
    "fawa": ("wei2023cfa",),
    "fawa-chart": ("wei2023cfa",),
    "fawa-iut": ("wei2023cfa",),
    "softmax": (),
    "he": ("pang2020boosting",),
    "focal": ("lin2017focal",),
    "label-smoothing": ("szegedy2016rethinking",),
    "mean": (),
    "normalised": (),
    "faal": ("zhang2024fairness",),
    "codat": ("zhi2025codat",),
    "logit-similarity": ("benz2021robustness",),
    "plain": (),
    "crop": (),
    "crop-flip": (),
    "idbh-weak": ("li2023data",),
    "unlabelled": ("carmon2019unlabeled",),
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
    "tpgd": ("tian2021analysis",),
    "pgd-t": ("gowal2019alternative",),
    "apgd-ce": ("croce2020reliable", "croce2021mind"),
    "apgd-dlr": ("croce2020reliable", "croce2021mind"),
    "apgd-t": ("croce2020reliable", "croce2021mind"),
    "fab": ("croce2020minimally",),
    "fab-t": ("croce2020minimally", "croce2020reliable"),
    "square": ("andriushchenko2020square",),
    "nattack": ("li2019nattack",),
    "cw": ("carlini2017towards",),
    "cw-l2": ("carlini2017towards",),
    "mifgsm": ("dong2018boosting",),
    "difgsm": ("xie2019improving",),
    "md": ("ma2023imbalanced",),
    "pma": ("xie2024towards",),
    "transfer": (),
    "foreign": (),
}
"""The papers behind each part that a recipe names and each attack; those of none are our own, common property, or not
published."""


def papers(name: str) -> list[Paper]:
    """The papers behind a recipe, a part, an attack or a suite, each once, in the order of the recipe's fields.

    Raises:
        UserError: if there is nothing of that name.
    """
    if name in recipe_names():
        parts = _parts(Recipe.read(name))
    elif name in SUITES:
        parts = [parse_spec(spec)[0] for spec in members(name)]
    elif name in SOURCES:
        parts = [name]
    else:
        raise unknown("recipe, part or attack", name, {*recipe_names(), *SUITES, *SOURCES})
    keys = [key for part in parts for key in SOURCES.get(part, ())]
    return [PAPERS[key] for key in dict.fromkeys(keys)]


def _parts(recipe: Recipe) -> list[str]:
    """The names of the parts that decide the recipe's numbers, the single-step attack's rate after it."""
    objective = recipe.objective
    criterion = [objective["criterion"]] if isinstance(objective, Mapping) and "criterion" in objective else []
    parts = (objective, *criterion, *([] if objective == "standard" else [recipe.attack]))
    extra = [] if recipe.data.unlabelled is None else ["unlabelled"]
    rest = (*extra, *recipe.schedules, recipe.reduction, recipe.update, recipe.optimizer, recipe.rate, recipe.averaging)
    return [name for part in (*parts, *rest, recipe.data.augment) for name in _names(part)]


def _names(part: Part) -> list[str]:
    """What a part is called, and which kind of it is meant where it has kinds of other sources."""
    if isinstance(part, str):
        return [part.partition(":")[0]]
    return [str(part[key]) for key in ("name", "kind") if key in part]


PARTS = (OBJECTIVES, CRITERIA, SCHEDULES, REDUCTIONS, UPDATES, OPTIMISERS, RATES, AVERAGERS, AUGMENTATIONS, ATTACKS)
"""The tables whose every name has its line in `SOURCES`."""
