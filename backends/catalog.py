"""The dialects there are: every file in `backends.dialects` is one, named by its file.

    CatalogError    a file of the folder is not a dialect

A dialect is added by adding its file; nothing lists them by name.
"""

import importlib
import pkgutil
from collections.abc import Mapping
from types import MappingProxyType, ModuleType
from typing import Final

import backends.dialects
from backends.dialect import Dialect


class CatalogError(ImportError):
    """A file of the folder is not a dialect; says which and what it lacks."""


def load_dialects(package: ModuleType) -> Mapping[str, Dialect]:
    """The dialects of a package by name, in the order of their names.

    Raises `CatalogError` for a file without a `Dialect` called `DIALECT`, or with one that is named otherwise.
    """
    found: dict[str, Dialect] = {}
    for module in sorted(pkgutil.iter_modules(package.__path__), key=lambda module: module.name):
        dialect = getattr(importlib.import_module(f"{package.__name__}.{module.name}"), "DIALECT", None)
        if not isinstance(dialect, Dialect):
            raise CatalogError(f"{package.__name__}.{module.name} must define DIALECT, a backends.dialect.Dialect")
        if dialect.name != module.name:
            raise CatalogError(
                f"{package.__name__}.{module.name} names its dialect {dialect.name!r}; it must be {module.name!r}"
            )
        found[dialect.name] = dialect
    return MappingProxyType(found)


DIALECTS: Final = load_dialects(backends.dialects)

_OWN_FIELDS: Final[frozenset[str]] = frozenset().union(*(dialect.own_fields for dialect in DIALECTS.values()))


def foreign_fields(dialect: Dialect) -> frozenset[str]:
    """Body fields that only other kinds of upstream understand: for this one they are left out, disclosed."""
    return _OWN_FIELDS - dialect.own_fields
