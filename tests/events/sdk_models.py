"""The models of the openai SDK, by the types of events and items."""

import typing
from typing import Any

from pydantic import BaseModel


def list_union_models(union: Any) -> list[type[BaseModel]]:
    """Returns the models of a union and of the unions nested in it."""
    models: list[type[BaseModel]] = []
    for arg in typing.get_args(getattr(union, "__value__", union)):
        models += [arg] if isinstance(arg, type) and issubclass(arg, BaseModel) else list_union_models(arg)
    return models


def find_type_tag(model: type[BaseModel]) -> str:
    annotation = model.model_fields["type"].annotation
    literals = [annotation, *typing.get_args(annotation)]
    return next(
        value for literal in literals for value in [literal, *typing.get_args(literal)] if isinstance(value, str)
    )
