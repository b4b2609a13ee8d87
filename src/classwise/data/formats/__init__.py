"""Registry of file formats, each of which reads `Images`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from classwise.core.settings.registry import Registry

if TYPE_CHECKING:
    from classwise.data.formats.base import Format

FORMATS: Registry[Format] = Registry(
    "data format",
    {
        "parquet": "classwise.data.formats.parquet:Parquet",
        "arrow": "classwise.data.formats.arrow:Arrow",
        "npz": "classwise.data.formats.npz:Npz",
        "idx": "classwise.data.formats.idx:Idx",
        "cifar": "classwise.data.formats.cifar:Cifar",
        "cifar-binary": "classwise.data.formats.cifar:CifarBinary",
        "cifar-c": "classwise.data.formats.cifar_c:CifarC",
        "mat": "classwise.data.formats.mat:Mat",
        "stl10-binary": "classwise.data.formats.stl10:Stl10Binary",
        "tiny-imagenet": "classwise.data.formats.tiny_imagenet:TinyImageNetFolder",
        "folder": "classwise.data.formats.folder:Folder",
        "webdataset": "classwise.data.formats.webdataset:WebDataset",
    },
    base="classwise.data.formats.base:Format",
)
"""File formats by name, in the order in which they are tried to recognise a path."""
