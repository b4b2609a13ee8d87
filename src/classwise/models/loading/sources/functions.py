"""Models built by a Python function: those of the zoo, and ``package.module:callable``."""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from classwise.core.errors import ClasswiseError, unknown
from classwise.core.settings import limits
from classwise.core.settings.registry import is_builtin, kind_text
from classwise.core.settings.user_code import call_user_code
from classwise.models.base import Classifier
from classwise.models.functions import MaiteModel, is_model
from classwise.models.loading.sources.base import ModelSource, Shape, SourceModel
from classwise.models.registry import MODELS
from classwise.models.zoo.heads import CosineHead

_UNEXPECTED = re.compile(r"got an unexpected keyword argument '(\w+)'")


class Function(ModelSource):
    """The module that a user-defined function, class or class method returns, or a copy of a user-defined module.

    In place of a module, also a model in the protocol of MAITE.
    """

    form = "package.module:callable"

    def build(
        self, name: str, shape: Shape, options: Mapping[str, Any], *, pretrained: bool | str = False
    ) -> SourceModel:
        """Call the function with all options, and with those of classes, channels and width that it accepts."""
        make: Callable[..., object] = MODELS.load(name)
        if isinstance(make, nn.Module) or is_model(make):
            return SourceModel(_module(make, name, shape, options))
        if not callable(make) or is_builtin(make) or (isinstance(make, type) and not issubclass(make, nn.Module)):
            raise ClasswiseError(
                f"model {name!r} is {kind_text(make)}; give a torch.nn.Module class, a Python function, or "
                "an object in the protocol of MAITE"
            )
        model: Any = self._called(make, name, self._shape(shape), options)
        if is_model(model):
            return SourceModel(MaiteModel(model))
        if not isinstance(model, nn.Module):
            raise ClasswiseError(f"model {name!r} returns a {type(model).__name__}, not a torch.nn.Module")
        is_meta = any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers()))
        if is_meta and torch.empty(0).device.type != "meta":  # models are built there to count their parameters
            raise ClasswiseError(f"model {name!r} has tensors without data on the device 'meta'; build it on the CPU")
        return SourceModel(model)

    def _shape(self, shape: Shape) -> dict[str, Any]:
        """The shape to pass; a width of 1 is not requested, and a whole one may be a number of channels."""
        known = shape.known()
        width = known.pop("width")
        if width != 1.0:
            known["width"] = int(width) if float(width).is_integer() else width
        return known

    def _called(
        self, make: Callable[..., object], name: str, shape: Mapping[str, Any], options: Mapping[str, Any]
    ) -> object:
        parameters = _parameters(make)
        forwards = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
        named = {
            key: parameter
            for key, parameter in parameters.items()
            if parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
        }
        for option in options:
            if option not in named and not forwards:
                options_of = [key for key in named if key not in shape]
                raise unknown("option", option, options_of, owner=f"model {name!r}")
        accepted = {key: value for key, value in shape.items() if key in named or forwards}
        if shape.get("width", 1.0) != 1.0 and "width" not in accepted:
            raise _no_width(name, shape)
        values = {**accepted, **options}
        missing = [
            key for key, parameter in named.items() if parameter.default is parameter.empty and key not in values
        ]
        if missing[:1] == ["self"]:
            raise ClasswiseError(f"model {name!r} is a method of an instance; give a class method or a function")
        if missing:
            option = "--width VALUE" if missing[0] == "width" else f"--model-set {missing[0]}=VALUE"
            raise ClasswiseError(
                f"model {name!r} cannot be built: missing a required argument: {', '.join(map(repr, missing))}; "
                f"pass it as an option ({option}), or name a function that returns the model"
            )
        first = [
            values.pop(key)
            for key, parameter in named.items()
            if parameter.kind is parameter.POSITIONAL_ONLY and key in values
        ]
        optional = {key for key in accepted if key not in named and key not in options}
        return _with_accepted(make, name, first, values, optional)


def _module(
    module: nn.Module | Callable[..., object], name: str, shape: Shape, options: Mapping[str, Any]
) -> nn.Module:
    """A copy of a module that has been built already, or a model of MAITE as a module."""
    for option in options:
        raise ClasswiseError(f"model {name!r} is a module, not a function: it has no option {option!r}")
    if shape.width != 1.0:
        raise _no_width(name, shape.known())
    return copy.deepcopy(module) if isinstance(module, nn.Module) else MaiteModel(module)


def _parameters(make: Callable[..., object]) -> Mapping[str, inspect.Parameter]:
    """The parameters of a callable; none if they are unknown, as for some callables in C."""
    try:
        return inspect.signature(make).parameters
    except ValueError:
        return {}


def _with_accepted(
    make: Callable[..., object], name: str, first: list[Any], values: dict[str, Any], optional: set[str]
) -> object:
    """Call a function; ``optional`` arguments, for its ``**kwargs``, are dropped if it does not accept them."""
    state = torch.get_rng_state()
    while True:
        try:
            return call_user_code(make, *first, **values)
        except TypeError as error:
            refused = _UNEXPECTED.search(str(error))
            if refused is None or refused[1] not in optional & values.keys():
                raise
            if refused[1] == "width" and values["width"] != 1.0:
                raise _no_width(name, values) from error
            del values[refused[1]]
            torch.set_rng_state(state)


def _no_width(name: str, values: Mapping[str, Any]) -> ClasswiseError:
    return ClasswiseError(f"model {name!r} has no parameter width; omit width = {values['width']}")


class Zoo(Function):
    """A network of classwise, or of an installed package (``classwise models``)."""

    form = "NAME"

    def build(
        self, name: str, shape: Shape, options: Mapping[str, Any], *, pretrained: bool | str = False
    ) -> SourceModel:
        """Build a network with random weights; the option ``head`` may be ``linear`` or ``cosine``."""
        inner = dict(options)
        head = inner.pop("head", "linear")
        if head not in ("linear", "cosine"):
            raise ClasswiseError(f"model {name!r}: head = {head!r}: must be linear or cosine")
        built = super().build(name, shape, inner, pretrained=pretrained)
        model = built.network
        if head == "cosine" and isinstance(model, Classifier):
            last = model.classifier
            setattr(model, model.last_layer, CosineHead(last.in_features, last.out_features))
        return built

    def _shape(self, shape: Shape) -> dict[str, Any]:
        return shape.known()

    def _called(
        self, make: Callable[..., object], name: str, shape: Mapping[str, Any], options: Mapping[str, Any]
    ) -> object:
        try:
            inspect.signature(make).bind_partial(**options)
        except TypeError:
            pass  # reported by the call
        else:
            _check_size(name, make, shape, options)
        return super()._called(make, name, shape, options)


def _check_size(name: str, make: Callable[..., object], shape: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    """Check the options and the size of a network of the zoo before any memory is allocated.

    Raises:
        ClasswiseError: for an option of the wrong type or above `limits.MODEL_DEPTH`, or weights that exceed the
            memory.
    """
    parameters = _parameters(make)
    shape = {key: value for key, value in shape.items() if key in parameters}
    for key, value in options.items():
        default = parameters[key].default
        if type(value) is not type(default) and not (type(default) is float and type(value) is int):
            raise ClasswiseError(f"model {name!r}: {key} = {value!r}: must be of type {type(default).__name__}")
        if isinstance(value, int | float) and not abs(value) <= limits.MODEL_DEPTH:
            raise ClasswiseError(f"model {name!r}: {key} = {value}: must be at most {limits.MODEL_DEPTH}")
    if (
        not options
        and shape.get("width", 1.0) <= 1
        and max(shape.get("num_classes", 1), shape.get("in_channels", 1)) <= 1000
    ):
        return
    try:
        with torch.device("meta"):
            network = make(**shape, **options)
    except (RuntimeError, OverflowError, TypeError) as error:  # torch: sizes whose product exceeds 64 bits
        raise ClasswiseError(f"model {name!r} cannot be built with {dict(shape)}: its weights are too large") from error
    if isinstance(network, nn.Module):
        size = sum(tensor.nbytes for tensor in (*network.parameters(), *network.buffers()))
        limits.check_size(size, f"model {name!r} with {dict(shape) | dict(options)}")
