"""CIFAR-10-C and CIFAR-100-C as named data sets, and the options of all sets of corrupted images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from classwise.core.errors import ClasswiseError, unknown
from classwise.core.settings.config import configurable
from classwise.data.corruptions import CORRUPTIONS
from classwise.data.corruptions.base import Severity
from classwise.data.formats.cifar_c import CifarC, corruptions
from classwise.data.images import Images
from classwise.data.sets.base import DataSet, Remote
from classwise.data.sets.cifar import Cifar10, Cifar100


@configurable
class Corrupted(DataSet):
    """Base class of named sets of corrupted images.

    Args:
        corruption: name of the corruption, which is that of its file or folder.
        severity: 1 to 5.
    """

    source: ClassVar[tuple[str, ...]] = (
        (
            "Hendrycks and Dietterich, Benchmarking Neural Network Robustness to Common Corruptions and Perturbations, "
            "ICLR, 2019"
        ),
    )
    splits: ClassVar[tuple[str, ...]] = ("test",)
    corruption: str | None = None
    severity: Severity | None = None

    @property
    def title(self) -> str:
        """The name, the corruption and its severity."""
        return f"{self.name}, {self.corruption} {self.severity}"

    def chosen(self, known: Sequence[str]) -> str:
        """The corruption, if it is chosen and available.

        Raises:
            ClasswiseError: if corruption or severity are not given, or the corruption is unknown or not in ``known``.
        """
        if self.corruption is None or self.severity is None:
            raise ClasswiseError(
                f"{self.name} needs a corruption and a severity from 1 to 5; corruptions: {', '.join(known)}"
            )
        if self.corruption not in known and self.corruption in CORRUPTIONS:
            raise ClasswiseError(
                f"the files of {self.name} lack the corruption {self.corruption}; name one of: {', '.join(known)}"
            )
        if self.corruption not in known:
            raise unknown(f"corruption of {self.name}", self.corruption, known)
        return self.corruption


class _CifarC(Corrupted):
    """Base class of CIFAR-10-C and CIFAR-100-C.

    Attributes:
        published: name of the folder with the .npy files.
    """

    published: ClassVar[str]
    sizes: ClassVar[tuple[int, ...]] = (10_000,)
    remote: ClassVar[tuple[Remote, ...]] = ()

    def read(self, root: Path, split: str) -> Images | None:
        """Read one corruption at one severity.

        Raises:
            ClasswiseError: as `chosen`, or for invalid files.
        """
        for folder in (root / self.published, root / self.name, root):
            if folder.name in (self.published, self.name) and folder.is_dir():
                name = self.chosen(corruptions(folder))
                return self.named(CifarC(corruption=name, severity=self.severity).read(folder, split), split)
        return None


@configurable
class Cifar10C(_CifarC, Cifar10):
    """CIFAR-10-C (Hendrycks and Dietterich 2019): the 10,000 test images under a corruption."""

    name = "cifar10-c"
    published = "CIFAR-10-C"
    files = "`CIFAR-10-C/CORRUPTION.npy`; `corruption` and `severity` are required"


@configurable
class Cifar100C(_CifarC, Cifar100):
    """CIFAR-100-C (Hendrycks and Dietterich 2019): the 10,000 test images under a corruption."""

    name = "cifar100-c"
    published = "CIFAR-100-C"
    files = "`CIFAR-100-C/CORRUPTION.npy`; `corruption` and `severity` are required"
