"""The served models, and the names by which clients request them."""

from collections.abc import Iterator, Sequence

from msgspec import Struct

from antiphon.app.errors import ApiError, clip_text, missing_field
from antiphon.engine.protocol import Engine
from antiphon.harmony.format import ModelFormat


class ServedModel(Struct, frozen=True, kw_only=True):
    """An engine and the format of its tokens. The first of `names` is the model's own name, the others are aliases."""

    names: tuple[str, ...]
    engine: Engine
    format: ModelFormat
    created: int
    """Time when the model became available, in whole seconds since 1970."""
    owned_by: str = "antiphon"


class ModelRegistry:
    """Finds models by any of their names. Raises `ValueError` if two models have the same name."""

    def __init__(self, models: Sequence[ServedModel]) -> None:
        self.served = tuple(models)
        self._by_name: dict[str, ServedModel] = {}
        for model in models:
            for name in model.names:
                if name in self._by_name:
                    raise ValueError(f"duplicate model name {name!r}")
                self._by_name[name] = model

    def find_model(self, name: str | None) -> ServedModel:
        """Returns the model called `name`. Raises `ApiError`: 400 if `name` is None, 404 if no model has that name."""
        if name is None:
            raise missing_field("model")
        model = self._by_name.get(name)
        if model is None:
            available = ", ".join(f"'{served_name}'" for served_name in self._by_name)
            message = f"The model '{clip_text(name)}' does not exist. Use one of: {available}."
            raise ApiError(404, "model_not_found", message, "model")
        return model

    def get_model(self, name: object) -> ServedModel | None:
        """Returns the model called `name`, or None if `name` is not the name of a model."""
        return self._by_name.get(name) if isinstance(name, str) else None

    def __iter__(self) -> Iterator[tuple[str, ServedModel]]:
        return iter(self._by_name.items())
