"""The docstrings of fields as descriptions in a schema: read from the source where they are written out, and only then.

Rejected: pydantic's `use_attribute_docstrings`. It parses every class's source whenever a process starts, a fifth of
the time that a gateway needs to be back.
"""

import ast
import inspect
from collections.abc import Iterator
from itertools import pairwise
from textwrap import dedent
from typing import Any

from pydantic import BaseModel


def describe_fields(document: dict[str, Any], model: type[BaseModel]) -> None:
    """Give each property of pydantic's JSON schema of `model`, also below `$defs`, the words under its field."""
    definitions: dict[str, dict[str, Any]] = document.get("$defs", {})
    for found in _find_models(model, set()):
        schema = document if found is model else definitions[found.__name__]
        for name, words in _read_words(found).items():
            schema["properties"][found.model_fields[name].alias or name].setdefault("description", words)


def _find_models(model: type[BaseModel], seen: set[type]) -> Iterator[type[BaseModel]]:
    seen.add(model)
    yield model
    for field in model.model_fields.values():
        for part in _find_parts(field.annotation):
            if part not in seen:
                yield from _find_models(part, seen)


def _find_parts(annotation: Any) -> Iterator[type[BaseModel]]:
    """The models that a type is made of, e.g. of `tuple[Member, ...] | None`."""
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in getattr(annotation, "__args__", ()):
        yield from _find_parts(argument)


def _read_words(model: type[BaseModel]) -> dict[str, str]:
    """By field; what a subclass says wins."""
    words: dict[str, str] = {}
    for base in reversed(model.__mro__):
        if issubclass(base, BaseModel) and base is not BaseModel:
            for definition in ast.parse(dedent(inspect.getsource(base))).body:
                if isinstance(definition, ast.ClassDef):
                    words |= dict(_read_definition(definition))
    return words


def _read_definition(definition: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for statement, following in pairwise(definition.body):
        match statement, following:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ) if not name.isupper():  # a class's constant is no field
                yield name, inspect.cleandoc(text)
            case _:
                pass
