"""Body of `POST /v1/completions`."""

from typing import Annotated, Any

from msgspec import Meta

from antiphon.app.errors import ApiError
from antiphon.app.requests.fields import Honoured, refused
from antiphon.app.requests.fields.annotations import Checked
from antiphon.app.requests.fields.checks import build_check
from antiphon.app.requests.fields.common import MAX_CHOICES, MAX_INTEGER, NonNegativeInt, NumChoices, StopStrings, Text
from antiphon.app.requests.fields.vllm import CompletionBody, ResponseFormat, UsageOptions, check_truncation

MAX_PROMPTS = MAX_CHOICES


def _check_prompt(value: str | list[Any], path: str) -> None:
    """Checks texts and token ids. All entries are of the first one's kind."""
    if isinstance(value, str):
        build_check(Text)(value, path)
        return
    if not value:
        raise ApiError(400, "empty_array", f"Invalid '{path}': empty array. Expected at least one entry.", path)
    if not isinstance(value[0], str | list):
        _check_token_ids(value, path)
        return
    if len(value) > MAX_PROMPTS:
        build_check(Annotated[list[Any], Meta(max_length=MAX_PROMPTS)])(value, path)
    for index, entry in enumerate(value):
        (build_check(Text) if isinstance(value[0], str) else _check_token_ids)(entry, f"{path}[{index}]")


def _check_token_ids(value: Any, path: str) -> None:
    build_check(list[Any])(value, path)
    if not all(type(token) is int and 0 <= token <= MAX_INTEGER for token in value):  # building paths is slow
        build_check(list[NonNegativeInt])(value, path)


class TextCompletionBody(CompletionBody, frozen=True, kw_only=True):
    """Body of `POST /v1/completions`."""

    prompt: Honoured[Annotated[str | list[Any], Checked(_check_prompt)]] = None
    """Required. A string, token ids, or an array of up to 128 of either. No chat template is applied: the prompt is the
    whole frame, so special tokens that are spelled in it become control tokens. A prompt without any token is refused.
    """
    suffix: Honoured[Text] = None
    """Text after the completion, for models with fill-in-the-middle tokens; 400 for others. Special tokens in `prompt`
    and `suffix` are then plain text. An empty string means none. Not with `echo`."""
    max_tokens: Honoured[NonNegativeInt] = None
    """Default: 16. 0 generates nothing: with `echo` and `logprobs` it scores the prompt."""
    n: Honoured[NumChoices] = None
    """Choices of each prompt; prompts times choices is at most 128. Choice i is sampled with `seed` + i."""
    logprobs: Honoured[Annotated[int, Meta(ge=0, le=5)]] = None
    r"""0 to 5 most likely tokens besides the chosen one. Offsets count characters of the choice's `text`; a token that
    is only part of a character is written as `bytes:\x…`."""
    echo: Honoured[bool] = None
    """The text begins with the prompt; token ids are decoded. With `logprobs` the prompt's tokens are scored, too."""
    stop: Honoured[StopStrings] = None
    """A string or up to 16 strings. A match is not returned. Ignored if the text must be JSON. A choice's
    `stop_reason`, which is always sent, is the string or the id of `stop_token_ids` that ended it, else null."""
    stream_options: Honoured[UsageOptions] = None
    """Only with `stream`. `include_usage` adds a last chunk with the usage, `continuous_usage_stats` sends the
    request's usage so far with every chunk, `include_obfuscation` pads every chunk."""
    truncate_prompt_tokens: Honoured[Annotated[int, Checked(check_truncation)]] = None
    """Not in OpenAI's API. Keeps this number of tokens at the prompt's end; -1: as many as fit with `max_tokens`.
    `echo` then returns the part that was kept."""
    skip_special_tokens: Honoured[bool] = None
    """Not in OpenAI's API. Default: true. False: special tokens in the output are part of the text."""
    add_special_tokens: Honoured[bool] = None
    """Not in OpenAI's API. Default: true. A string gets the tokens that the tokenizer itself adds, such as BOS; token
    ids never do."""
    return_token_ids: Honoured[bool] = None
    """Not in OpenAI's API. Each choice has `token_ids` and `prompt_token_ids`, in the stream once."""
    response_format: Honoured[ResponseFormat] = None
    """Not in OpenAI's API. `text`, `json_object` or `json_schema`; enforced during sampling."""
    prompt_embeds: Annotated[Any, refused("Prompts are text or token ids.")] = None
