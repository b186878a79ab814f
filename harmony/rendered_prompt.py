"""A prompt as the model reads it, and the errors of conversations that have none."""

from msgspec import Struct


class ImageSpan(Struct, frozen=True, kw_only=True):
    """Place of a picture among the tokens of a prompt."""

    key: bytes
    """Identity of the prepared picture."""
    offset: int
    """Index of its first token."""
    length: int
    """Number of tokens from its first to its last one, with those of another kind between them."""
    rows: int
    """Number of rows of its features. One token stands for each, unless the engine puts them in itself."""
    grid: tuple[int, ...] = ()
    soft_id: int = -1
    """Id of these tokens."""

    @property
    def end(self) -> int:
        """Index after its last token."""
        return self.offset + self.length


class RenderedPrompt(Struct, frozen=True):
    """Prompt of a turn. `in_reasoning`: the answer begins inside reasoning, because the prompt ends there."""

    tokens: tuple[int, ...]
    text: str
    in_reasoning: bool = False
    offsets: tuple[int, ...] = ()
    """Offset of each token's first character in `text`, for a raw prompt whose tokens were to be located."""
    in_text: bool = False
    """True if the answer begins inside text for the user, because it continues a message."""
    in_wrapper: bool = False
    """True if the answer begins behind the marker that its model writes in front of text for the user."""
    media: tuple[ImageSpan, ...] = ()
    """Pictures in the prompt, in order."""
    texts: tuple[str, ...] = ()
    """Texts before, between and behind the pictures, for an engine that takes such prompts as text. `tokens` are those
    of the texts, and a picture has none."""

    @property
    def num_tokens(self) -> int:
        """Length of the prompt in the engine: with the rows of pictures that it puts in itself, as far as known."""
        return len(self.tokens) + sum(max(span.rows - span.length, 0) for span in self.media)


class RenderError(ValueError):
    """Raised for a conversation that cannot be rendered for this model. `param`: request field at fault, if any."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


class UnsupportedOptionError(RenderError):
    """Raised for a field that the model's format cannot honour. `param` is the field."""
