"""A conversation rendered for a model: the prompt of a turn, of a later round or of a summary."""

from datetime import datetime

from msgspec import Struct, structs

from antiphon.events.response import PromptCacheDiagnostics
from antiphon.harmony.format import ModelFormat, PromptInput
from antiphon.harmony.rendered_prompt import RenderedPrompt

PrefixKey = tuple[str, int, bytes]
"""Owner, `id()` of the format, digest of the tokens. Remembered turns keep their format alive, so no id is reused."""


class TurnPrompt(Struct, frozen=True, kw_only=True):
    """A conversation rendered for a model."""

    format: ModelFormat
    owner: str
    prompt_input: PromptInput
    now: datetime
    """Time of the rendering: templates write the date."""
    rendered_tokens: tuple[int, ...]
    """Prompt as the template renders it."""
    prompt: RenderedPrompt
    """Prompt as the model reads it, with generated ids restored."""
    start: PrefixKey | None = None
    """Key of the prompt up to the end of its last message; None for one that is not remembered."""
    grammar: str | None = None
    """Grammar that constrains the output, or None."""
    summary: "TurnPrompt | None" = None
    """Prompt of a summary that is generated first, because this one is too long; None: the turn begins with this."""
    diagnostics: PromptCacheDiagnostics | None = None
    """Diagnosis of the prompt cache before the engine has the prompt; None if the request asks for none."""
    num_comparable: int = 0
    """Number of tokens that the engine has computed for the compared response."""

    def replace_tokens(self, tokens: tuple[int, ...]) -> "TurnPrompt":
        """Returns the prompt as another process has read it: with these tokens. Raises `RenderError`."""
        prompt = self.prompt
        if not prompt.texts:
            prompt = structs.replace(prompt, tokens=tokens, media=self.format.find_images(tokens, prompt.media))
        return structs.replace(self, prompt=prompt)
