"""A request to an embedding or reranking model, as its fields are read."""

from collections.abc import Sequence

from msgspec import Struct

from antiphon.app.registry.model_registry import EncoderModel
from antiphon.app.registry.text_tokenizer import TextOrPair
from antiphon.engine.encoder_messages import VectorOptions


class EncoderRequest(Struct, frozen=True, kw_only=True):
    """Inputs of a request: texts, pairs of texts or token ids. `paths` are their names in the request."""

    model: EncoderModel
    inputs: Sequence[TextOrPair | list[int]]
    paths: Sequence[str]
    max_tokens: int | None = None
    """Length to which inputs are cut. None: an input that is longer than the model allows is an error."""
    options: VectorOptions = VectorOptions()
