"""Fields of vLLM's API that chat and text completions share."""

from typing import Annotated, Any

from msgspec import Meta, Struct

from antiphon.app.requests.fields import Accepted, Honoured, refused
from antiphon.app.requests.fields.checks import build_check
from antiphon.app.requests.fields.common import (
    JsonObjectFormat,
    JsonSchemaSettings,
    Label256,
    Label512,
    NonNegativeInt,
    NumChoices,
    PlainTextFormat,
    PositiveInt,
    SampledBody,
    Text,
    TopLogprobs,
)

MAX_STOP_IDS = 64
MAX_CHOICE_STRINGS = 256

Schema = Text | dict[str, Any]
Choices = Annotated[list[Text], Meta(max_length=MAX_CHOICE_STRINGS)]
RequestId = Annotated[str, Meta(max_length=128, pattern=r"^[A-Za-z0-9_.:-]{1,128}\Z")]


class JsonSchemaFormat(Struct, frozen=True, tag_field="type", tag="json_schema", forbid_unknown_fields=True):
    """Text that matches a JSON Schema."""

    json_schema: JsonSchemaSettings


ResponseFormat = PlainTextFormat | JsonObjectFormat | JsonSchemaFormat


class StructuredOutputs(Struct, frozen=True, forbid_unknown_fields=True):
    """The form of the text. At most one is set."""

    json: Schema | None = None
    regex: Text | None = None
    choice: Choices | None = None
    grammar: Text | None = None
    json_object: bool | None = None


def check_truncation(value: int, path: str) -> None:
    """Checks `truncate_prompt_tokens`: a positive number, or -1."""
    if value != -1:
        build_check(PositiveInt)(value, path)


class UsageOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """Options of a stream of completions."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None


class CompletionBody(SampledBody, frozen=True, kw_only=True):
    """Fields of chat and text completions."""

    top_p: Honoured[Annotated[float, Meta(gt=0, le=1)]] = None
    """Above 0, at most 1; default: the model's own value."""
    user: Accepted[Label512] = None
    """At most 512 characters."""
    best_of: Honoured[NumChoices] = None
    """At least `n`: samples this number of choices and returns the `n` with the highest mean log-probability of their
    tokens, the best first. All are part of the usage. Larger than `n`: not with `stream`."""
    include_stop_str_in_output: Honoured[bool] = None
    """Not in OpenAI's API. The text ends with the stop string that was found."""
    spaces_between_special_tokens: Accepted[bool] = None
    """Not in OpenAI's API. No effect, as with any fast tokenizer: special tokens are returned as generated."""
    return_tokens_as_token_ids: Honoured[bool] = None
    """Not in OpenAI's API. Tokens in `logprobs` are written as `token_id:123`."""
    prompt_logprobs: Honoured[TopLogprobs] = None
    """Not in OpenAI's API. 0 to 20 most likely tokens for each position of the prompt, in vLLM's form. Not with
    `stream`."""
    request_id: Honoured[RequestId] = None
    """Not in OpenAI's API. The reply's id after `chatcmpl-` or `cmpl-`."""
    min_tokens: Honoured[NonNegativeInt] = None
    """Not in OpenAI's API. No token that ends the turn is sampled before; stop strings count from the beginning."""
    stop_token_ids: Honoured[Annotated[list[NonNegativeInt], Meta(max_length=MAX_STOP_IDS)]] = None
    """Not in OpenAI's API. At most 64 token ids that end the text. Their text is part of it unless they are special
    tokens."""
    ignore_eos: Honoured[bool] = None
    """Not in OpenAI's API. Continues after the model's own end tokens."""
    priority: Honoured[NonNegativeInt] = None
    """Not in OpenAI's API. Requests with a higher number wait for those with a lower one. Negative numbers are refused:
    no client overtakes requests without a priority."""
    cache_salt: Honoured[Label256] = None
    """Not in OpenAI's API. Cached prompts are shared only among requests with the same salt."""
    structured_outputs: Honoured[StructuredOutputs] = None
    """Not in OpenAI's API. One of `json` (a schema), `json_object`, `regex`, `choice` and `grammar` (Lark). Enforced in
    sampling."""
    guided_json: Honoured[Schema] = None
    """Older name of `structured_outputs.json`."""
    guided_regex: Honoured[Text] = None
    """Older name of `structured_outputs.regex`."""
    guided_choice: Honoured[Choices] = None
    """Older name of `structured_outputs.choice`."""
    guided_grammar: Honoured[Text] = None
    """Older name of `structured_outputs.grammar`."""
    structural_tag: Annotated[Any, refused("Use `structured_outputs.grammar`.")] = None
    guided_decoding_backend: Annotated[Any, refused("There is only one backend.")] = None
    guided_whitespace_pattern: Annotated[Any, refused("The white space of JSON is fixed.")] = None
    use_beam_search: Annotated[Any, refused("Beam search is not supported. Use `best_of`.")] = None
    length_penalty: Annotated[Any, refused("Beam search is not supported.")] = None
    allowed_token_ids: Annotated[Any, refused("Use `logit_bias` or `structured_outputs`.")] = None
    bad_words: Annotated[Any, refused("Use `logit_bias`.")] = None
    logits_processors: Annotated[Any, refused("Custom code is not run.")] = None
    mm_processor_kwargs: Annotated[Any, refused("Prompts are text or token ids.")] = None
    kv_transfer_params: Annotated[Any, refused("The cache is not shared with other servers.")] = None
    vllm_xargs: Annotated[Any, refused("Not supported by this server.")] = None
