"""ONNX models, run by ONNX Runtime."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from classwise.core.errors import ClasswiseError, did_you_mean, unknown
from classwise.core.settings import limits
from classwise.core.settings.extras import reason, require
from classwise.models.loading.sources.base import ModelSource, Shape, SourceModel
from classwise.models.provenance import note_weights_file

TYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(double)": np.float64}
"""Accepted types of the input, by ONNX Runtime's name."""


class Onnx(ModelSource):
    """An ONNX model, run by ONNX Runtime: a file FILE.onnx. It has no gradients, so use ``square`` or ``nattack``.

    Its only input is a batch of images (N, C, H, W); its logits are the first floating-point output of shape (N, C).
    """

    form = "FILE.onnx"

    def build(
        self, name: str, shape: Shape, options: Mapping[str, Any], *, pretrained: bool | str = False
    ) -> SourceModel:
        """Open the file."""
        self.refuse_width(shape)
        if options:
            raise unknown("option", next(iter(options)), (), owner=f"model {name!r}")
        file = Path(name).expanduser()
        if not file.is_file():
            raise ClasswiseError(f"there is no file {file}; give an ONNX file{did_you_mean(file)}")
        network = OnnxModel(file)
        note_weights_file(network, file)
        return SourceModel(network, f"read {file}, run by ONNX Runtime")


class OnnxModel(nn.Module):
    """An ONNX model as a module on the CPU, without gradients.

    Its buffer ``digest`` is the SHA-256 of the file and of its external data, by which audits recognise the model.

    Args:
        file: the ONNX file.

    Raises:
        ClasswiseError: if the file is damaged, or its inputs and outputs are not those of an image classifier.
    """

    no_gradient = "ONNX Runtime computes no gradients"
    digest: Tensor

    def __init__(self, file: Path) -> None:
        super().__init__()
        runtime = require("onnxruntime", "onnx")
        limits.check_size(file.stat().st_size, str(file))
        settings = runtime.SessionOptions()
        settings.intra_op_num_threads = torch.get_num_threads()
        preferred = ("CUDAExecutionProvider", "CPUExecutionProvider")
        providers = [provider for provider in preferred if provider in runtime.get_available_providers()]
        try:
            self._session = runtime.InferenceSession(str(file), settings, providers=providers)
        except Exception as error:  # the runtime's errors have no common base class
            raise ClasswiseError(
                f"{file} is damaged or not an ONNX model ({reason(error)}); export the model again"
            ) from error
        inputs, outputs = self._session.get_inputs(), self._session.get_outputs()
        if len(inputs) != 1 or len(inputs[0].shape) != 4 or inputs[0].type not in TYPES:
            found = ", ".join(f"{node.name} {node.type} {node.shape}" for node in inputs)
            raise ClasswiseError(f"{file} has the inputs {found}; expected one of floating-point images (N, C, H, W)")
        floating = [output for output in outputs if output.type in TYPES]
        logits = [output for ndim in (2, 1) for output in floating if len(output.shape) == ndim]
        if not logits:
            found = ", ".join(f"{output.name} {output.type} {output.shape}" for output in outputs)
            raise ClasswiseError(
                f"{file} has the outputs {found}; expected floating-point logits (N, C), or one output per image (N,)"
            )
        self._input, self._output, self._type = inputs[0].name, logits[0].name, TYPES[inputs[0].type]
        size = inputs[0].shape[0]
        self._batch_size = size if isinstance(size, int) and size > 0 else None
        self._channels = inputs[0].shape[1] if isinstance(inputs[0].shape[1], int) else None
        content = hashlib.sha256(file.read_bytes())
        for external in sorted(file.parent.glob(f"{file.name}*data")):
            content.update(external.read_bytes())
        self.register_buffer("digest", torch.frombuffer(bytearray(content.digest()), dtype=torch.uint8))

    def forward(self, x: Tensor) -> Tensor:
        """Logits (N, C), or outputs (N,), of images (N, channels, H, W); copies fill a fixed batch size."""
        if self._channels not in (None, x.shape[1]):
            raise ClasswiseError(
                f"the ONNX model has {self._channels} image channels and the images {x.shape[1]}; they must be equal"
            )
        images = x.detach().cpu().numpy().astype(self._type)
        count = len(images)
        size = self._batch_size or count
        images = np.concatenate([images, np.repeat(images[-1:], -count % size, axis=0)])
        try:
            parts = [
                self._session.run([self._output], {self._input: np.ascontiguousarray(images[start : start + size])})[0]
                for start in range(0, len(images), size)
            ]
        except Exception as error:  # the runtime's errors have no common base class
            shape = tuple(x.shape[1:])
            raise ClasswiseError(f"the ONNX model does not accept images of shape {shape}: {reason(error)}") from error
        return torch.from_numpy(np.concatenate(parts)[:count]).float().to(x.device)
