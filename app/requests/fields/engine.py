"""Fields of vLLM's API that chat and text completions share, and the checks of their values."""

from typing import Any

from antiphon.app.base.errors import ApiError
from antiphon.app.requests import validators as c
from antiphon.app.requests.fields import MAX_TEXT_CHARS, RequestField, refused_field

MAX_STOP_IDS = 64
MAX_CHOICE_STRINGS = 256
GUIDED_FIELDS = ("guided_json", "guided_regex", "guided_choice", "guided_grammar")
"""Older names of the keys of `structured_outputs`."""

_check_text = c.string_like(MAX_TEXT_CHARS)
_check_choices = c.array_of(_check_text, MAX_CHOICE_STRINGS)


def check_top_p(value: Any, path: str) -> None:
    """Checks `top_p`: above 0, at most 1."""
    c.number_between(0, 1)(value, path)
    if value == 0:
        message = f"Invalid '{path}': decimal below minimum value. Expected a value > 0, but got 0 instead."
        raise ApiError(400, "decimal_below_min_value", message, path)


def _check_schema(value: Any, path: str) -> None:
    if isinstance(value, str):
        _check_text(value, path)
    else:
        c.is_object(value, path)


_check_structure = c.object_of(
    {"json": _check_schema, "regex": _check_text, "choice": _check_choices, "grammar": _check_text,
     "json_object": c.is_boolean}
)  # fmt: skip

TOP_P = RequestField("top_p", "honoured", check_top_p, "Above 0, at most 1; default: the model's own value.")
ENGINE_FIELDS = (
    RequestField(
        "min_tokens",
        "honoured",
        c.integer_between(0),
        "Not in OpenAI's API. No token that ends the turn is sampled before; stop strings count from the beginning.",
    ),
    RequestField(
        "stop_token_ids",
        "honoured",
        c.array_of(c.integer_between(0), MAX_STOP_IDS),
        "Not in OpenAI's API. At most 64 token ids that end the text. Their text is part of it unless they are special "
        "tokens.",
    ),
    RequestField(
        "ignore_eos", "honoured", c.is_boolean, "Not in OpenAI's API. Continues after the model's own end tokens."
    ),
    RequestField(
        "priority",
        "honoured",
        c.integer_between(0),
        "Not in OpenAI's API. Requests with a higher number wait for those with a lower one. Negative numbers are "
        "refused: no client overtakes requests without a priority.",
    ),
    RequestField(
        "cache_salt",
        "honoured",
        c.string_like(256),
        "Not in OpenAI's API. Cached prompts are shared only among requests with the same salt.",
    ),
    RequestField(
        "structured_outputs",
        "honoured",
        _check_structure,
        "Not in OpenAI's API. One of `json` (a schema), `json_object`, `regex`, `choice` and `grammar` (Lark). "
        "Enforced in sampling.",
    ),
    RequestField("guided_json", "honoured", _check_schema, "Older name of `structured_outputs.json`."),
    RequestField("guided_regex", "honoured", _check_text, "Older name of `structured_outputs.regex`."),
    RequestField("guided_choice", "honoured", _check_choices, "Older name of `structured_outputs.choice`."),
    RequestField("guided_grammar", "honoured", _check_text, "Older name of `structured_outputs.grammar`."),
    refused_field("structural_tag", "Use `structured_outputs.grammar`."),
    refused_field("guided_decoding_backend", "There is only one backend."),
    refused_field("guided_whitespace_pattern", "The white space of JSON is fixed."),
    refused_field("use_beam_search", "Beam search is not supported. Use `best_of`."),
    refused_field("length_penalty", "Beam search is not supported."),
    refused_field("allowed_token_ids", "Use `logit_bias` or `structured_outputs`."),
    refused_field("bad_words", "Use `logit_bias`."),
    refused_field("logits_processors", "Custom code is not run."),
    refused_field("mm_processor_kwargs", "Prompts are text or token ids."),
    refused_field("kv_transfer_params", "The cache is not shared with other servers."),
    refused_field("vllm_xargs", "Not supported by this server."),
)
"""Fields that change sampling or scheduling, and those that are refused by name."""
