"""The models that are served, and the names by which clients ask for them."""

from collections.abc import Iterator, Sequence

from msgspec import Struct

from antiphon.app.errors import ApiError, clip_text, missing_field
from antiphon.engine.protocol import Engine
from antiphon.harmony.format import ModelFormat


class ServedModel(Struct, frozen=True, kw_only=True):
    """One engine and the format its tokens are written in. The first of `names` is its own, the others are aliases."""

    names: tuple[str, ...]
    engine: Engine
    format: ModelFormat
    created: int
    """When it was put on offer, in whole seconds since 1970."""
    owned_by: str = "antiphon"


class ModelRegistry:
    """Finds a model by any of its names. Raises `ValueError` where two models claim one."""

    def __init__(self, models: Sequence[ServedModel]) -> None:
        self.served = tuple(models)
        self._by_name: dict[str, ServedModel] = {}
        for model in models:
            for name in model.names:
                if name in self._by_name:
                    raise ValueError(f"two models are called {name!r}")
                self._by_name[name] = model

    def find_model(self, name: str | None) -> ServedModel:
        """The model called `name`. Raises `ApiError`: 400 without a name, 404 for one that nobody has."""
        if name is None:
            raise missing_field("model")
        model = self._by_name.get(name)
        if model is None:
            served = ", ".join(f"'{known}'" for known in self._by_name)
            message = f"The model '{clip_text(name)}' does not exist. This server has: {served}."
            raise ApiError(404, "model_not_found", message, "model")
        return model

    def get_model(self, name: object) -> ServedModel | None:
        """The model called `name`, if `name` is what one is called."""
        return self._by_name.get(name) if isinstance(name, str) else None

    def __iter__(self) -> Iterator[tuple[str, ServedModel]]:
        return iter(self._by_name.items())
