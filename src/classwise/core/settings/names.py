"""Names that users choose: of classes, groups, attacks, methods, models and data sets."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence, Set

from classwise.core.errors import ClasswiseError


def checked_text(text: object, what: str) -> str:
    """Check a text that may be empty, such as the name of a split.

    Args:
        text: the text.
        what: the prefix of the error message.

    Raises:
        ClasswiseError: if it is not text, or contains a lone surrogate, which no file can represent.
    """
    if not isinstance(text, str):
        raise ClasswiseError(f"{what}: {text!r} is not text")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ClasswiseError(
                f"{what}: {text!a} contains the lone surrogate {text[error.start]!a}, which UTF-8 cannot "
                "represent; remove it"
            ) from None
    return str(text)


def checked_name(name: object, what: str) -> str:
    """Check a name: `checked_text` that is not blank.

    Raises:
        ClasswiseError: if it is not text, is blank, or contains a lone surrogate.
    """
    text = checked_text(name, what)
    if not text.strip():
        raise ClasswiseError(f"{what}: the name {text!r} is blank")
    return text


def checked_names(names: Iterable[str], what: str) -> tuple[str, ...]:
    """Check names that must be distinct, such as those of classes.

    Names that differ only in blanks, or in the Unicode form of a letter, are equal: they are printed alike.

    Args:
        names: the names in their order.
        what: the prefix of the error message, such as ``class names``.

    Raises:
        ClasswiseError: for text or a mapping in place of a list, or a name that `checked_name` rejects or occurs twice.
    """
    if isinstance(names, str | bytes | Mapping | Set) or not isinstance(names, Iterable):
        raise ClasswiseError(f"{what}: {names!r} is not a list of names, such as ['cat', 'dog']")
    checked = tuple(checked_name(name, what) for name in names)
    places: dict[str, int] = {}
    for place, name in enumerate(checked):
        first = places.setdefault(unicodedata.normalize("NFC", " ".join(name.split())), place)
        if first != place:
            equal = "occurs twice" if checked[first] == name else f"equals {checked[first]!r} but for blanks or form"
            raise ClasswiseError(f"{what}: {name!r} (position {place}) {equal} (position {first}); names must differ")
    return checked


def numbered_names(names: Sequence[str]) -> tuple[str, ...]:
    """Append its number to every name that occurs twice, such as ``crane (134)`` in ImageNet."""
    times = Counter(names)
    return tuple(f"{name} ({number})" if times[name] > 1 else name for number, name in enumerate(names))


def fresh_name(name: str, taken: Collection[str]) -> str:
    """The name, or the first unused of ``name-2``, ``name-3``, ..."""
    if name not in taken:
        return name
    return next(f"{name}-{number}" for number in range(2, len(taken) + 3) if f"{name}-{number}" not in taken)
