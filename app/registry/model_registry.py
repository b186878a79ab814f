"""The served models, and the names by which clients request them."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from antiphon.app.errors import ApiError, clip_text, missing_field
from antiphon.app.registry.text_tokenizer import TextTokenizer
from antiphon.engine.embeddings.repository import EncoderKind
from antiphon.engine.protocol import Engine
from antiphon.harmony.format import ModelFormat


class NamedModel(Struct, frozen=True, kw_only=True):
    """An engine under its names. The first of `names` is the model's own name, the others are aliases."""

    names: tuple[str, ...]
    engine: Engine
    created: int
    """Time when the model became available, in whole seconds since 1970."""
    owned_by: str = "antiphon"
    folder: Path | None = None
    """Folder with the model's tokenizer and templates; None if it has no files."""


class ServedModel(NamedModel, frozen=True, kw_only=True):
    """A model that generates text, and the format of its tokens."""

    format: ModelFormat
    adapter: str = ""
    """Name of the adapter by which the engine changes the model; empty for a base model."""
    parent: str | None = None
    """Name of an adapter's base model."""
    root: str = ""
    """Folder of an adapter."""


class EncoderModel(NamedModel, frozen=True, kw_only=True):
    """An embedding or reranking model, and the tokenizer of its texts."""

    kind: EncoderKind
    tokenizer: TextTokenizer


ENCODER_USES: dict[EncoderKind, tuple[str, str, str]] = {
    "embedding": ("an embedding model", "embeddings", "--embedding-model"),
    "rerank": ("a reranking model", "rerank", "--rerank-model"),
}
"""Description, name of the endpoint, and option of each kind of encoder."""


class ModelRegistry:
    """Finds models by any of their names. Raises `ValueError` if two models have the same name.

    `encoders` are embedding and reranking models, which generate no text: no chat endpoint finds them.
    """

    def __init__(self, models: Sequence[ServedModel], encoders: Sequence[EncoderModel] = ()) -> None:
        self.served, self.encoders = tuple(models), tuple(encoders)
        self._by_name: dict[str, ServedModel] = {}
        self._encoders_by_name: dict[str, EncoderModel] = {}
        for model in self.all_models:
            for name in model.names:
                if name in self._by_name or name in self._encoders_by_name:
                    raise ValueError(f"duplicate model name {name!r}")
                if isinstance(model, EncoderModel):
                    self._encoders_by_name[name] = model
                elif isinstance(model, ServedModel):
                    self._by_name[name] = model

    def restrict(self, names: frozenset[str] | None) -> "ModelRegistry":
        """Returns a registry of the models with these names, under these names only. None: all models."""
        if names is None:
            return self
        allowed = ModelRegistry([])
        allowed._by_name = {name: model for name, model in self._by_name.items() if name in names}
        allowed._encoders_by_name = {name: model for name, model in self._encoders_by_name.items() if name in names}
        allowed.served = tuple(model for model in self.served if not names.isdisjoint(model.names))
        allowed.encoders = tuple(model for model in self.encoders if not names.isdisjoint(model.names))
        return allowed

    def add_adapter(self, model: ServedModel) -> None:
        """Adds an adapter. Raises `ValueError` if another model has its name."""
        if model.adapter in self._encoders_by_name or model.adapter in self._by_name:
            raise ValueError(f"duplicate model name {model.adapter!r}")
        self._by_name[model.adapter] = model

    def remove_adapter(self, name: str) -> None:
        """Removes an adapter: its name is unknown from now on."""
        if self._by_name[name].adapter:
            del self._by_name[name]

    @property
    def all_models(self) -> tuple[NamedModel, ...]:
        """All models except adapters, those that generate text first."""
        return (*self.served, *self.encoders)

    @property
    def encoder_names(self) -> Iterator[tuple[str, EncoderModel]]:
        """Names of encoders, and the models that have them."""
        return iter(self._encoders_by_name.items())

    def find_encoder(self, name: str | None, kind: EncoderKind) -> EncoderModel:
        """Returns the encoder called `name`, or the first of its kind if `name` is None. Raises `ApiError`."""
        description, _, option = ENCODER_USES[kind]
        candidates = {each: model for each, model in self._encoders_by_name.items() if model.kind == kind}
        if not candidates:
            message = f"No model of this server is {description}. Start the server with {option}."
            raise ApiError(404, "model_not_found", message, "model")
        if name is None:
            return next(iter(candidates.values()))
        if name in candidates:
            return candidates[name]
        if self.get_model(name) is not None or name in self._encoders_by_name:
            raise ApiError(400, "invalid_value", f"The model '{clip_text(name)}' is not {description}.", "model")
        raise _unknown_model(name, candidates)

    def get_encoder(self, name: object) -> EncoderModel | None:
        """Returns the encoder called `name`, or None if `name` is not the name of an encoder."""
        return self._encoders_by_name.get(name) if isinstance(name, str) else None

    def find_model(self, name: str | None) -> ServedModel:
        """Returns the model called `name`. Raises `ApiError`: 400 if `name` is None, 404 if no model has that name."""
        if name is None:
            raise missing_field("model")
        model = self._by_name.get(name)
        if model is None and name in self._encoders_by_name:
            description, endpoint, _ = ENCODER_USES[self._encoders_by_name[name].kind]
            message = f"The model '{clip_text(name)}' is {description}: use it with the endpoint '{endpoint}'."
            raise ApiError(400, "invalid_value", message, "model")
        if model is None:
            raise _unknown_model(name, self._by_name)
        return model

    def get_model(self, name: object) -> ServedModel | None:
        """Returns the model called `name`, or None if `name` is not the name of a model."""
        return self._by_name.get(name) if isinstance(name, str) else None

    def __iter__(self) -> Iterator[tuple[str, ServedModel]]:
        return iter(tuple(self._by_name.items()))


def _unknown_model(name: str, names: Iterable[str]) -> ApiError:
    available = ", ".join(f"'{served_name}'" for served_name in names)
    message = f"The model '{clip_text(name)}' does not exist. Use one of: {available}."
    return ApiError(404, "model_not_found", message, "model")
