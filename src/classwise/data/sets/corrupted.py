"""CIFAR-10-C and CIFAR-100-C as named data sets, and the options of all sets of corrupted images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, ClassVar, Protocol

import pydantic

from classwise.core.config import configurable
from classwise.core.errors import ClasswiseError, unknown
from classwise.data.corruptions import CORRUPTIONS
from classwise.data.formats.cifar_c import SEVERITIES, CifarC, corruptions
from classwise.data.images import Images
from classwise.data.sets.base import DataSet, Remote
from classwise.data.sets.cifar import Cifar10, Cifar100

Severity = Annotated[int, pydantic.Field(ge=1, le=SEVERITIES)]
"""The severity of a corruption, 1 to 5."""


class Corrupted(Protocol):
    """A named set of corrupted images."""

    name: ClassVar[str]

    @property
    def corruption(self) -> str | None:
        """Name of the corruption."""

    @property
    def severity(self) -> int | None:
        """From 1 to 5."""


def check_corruption(chosen: Corrupted, known: Sequence[str]) -> str:
    """The corruption of a set, if it is chosen and available.

    Raises:
        ClasswiseError: if corruption or severity are not given, or the corruption is unknown or not among the files.
    """
    if chosen.corruption is None or chosen.severity is None:
        raise ClasswiseError(
            f"{chosen.name} needs a corruption and a severity from 1 to {SEVERITIES}; corruptions: {', '.join(known)}"
        )
    if chosen.corruption not in known and chosen.corruption in CORRUPTIONS:
        raise ClasswiseError(
            f"the files of {chosen.name} lack the corruption {chosen.corruption}; name one of: {', '.join(known)}"
        )
    if chosen.corruption not in known:
        raise unknown(f"corruption of {chosen.name}", chosen.corruption, known)
    return chosen.corruption


class _CifarC(DataSet):
    """Base class of CIFAR-10-C and CIFAR-100-C.

    Attributes:
        published: name of the folder with the .npy files.
    """

    published: ClassVar[str]
    source: ClassVar[tuple[str, ...]] = (
        (
            "Hendrycks and Dietterich, Benchmarking Neural Network Robustness to Common Corruptions and Perturbations, "
            "ICLR, 2019"
        ),
    )
    corruption: str | None
    severity: Severity | None
    splits = ("test",)
    sizes: ClassVar[tuple[int, ...]] = (10_000,)
    remote: ClassVar[tuple[Remote, ...]] = ()

    @property
    def title(self) -> str:
        """The name, the corruption and its severity."""
        return f"{self.name}, {self.corruption} {self.severity}"

    def read(self, root: Path, split: str) -> Images | None:
        """Read one corruption at one severity.

        Raises:
            ClasswiseError: as `check_corruption`, or for invalid files.
        """
        assert isinstance(self, Cifar10C | Cifar100C)
        for folder in (root / self.published, root / self.name, root):
            if folder.name in (self.published, self.name) and folder.is_dir():
                name = check_corruption(self, corruptions(folder))
                return self.named(CifarC(corruption=name, severity=self.severity).read(folder, split), split)
        return None


@configurable
class Cifar10C(_CifarC, Cifar10):
    """CIFAR-10-C (Hendrycks and Dietterich 2019): the 10,000 test images under a corruption.

    Args:
        corruption: name of the corruption's file.
        severity: 1 to 5.
    """

    name = "cifar10-c"
    published = "CIFAR-10-C"
    files = "`CIFAR-10-C/CORRUPTION.npy`; `corruption` and `severity` are required"
    corruption: str | None = None
    severity: Severity | None = None


@configurable
class Cifar100C(_CifarC, Cifar100):
    """CIFAR-100-C (Hendrycks and Dietterich 2019): the 10,000 test images under a corruption.

    Args:
        corruption: name of the corruption's file.
        severity: 1 to 5.
    """

    name = "cifar100-c"
    published = "CIFAR-100-C"
    files = "`CIFAR-100-C/CORRUPTION.npy`; `corruption` and `severity` are required"
    corruption: str | None = None
    severity: Severity | None = None
