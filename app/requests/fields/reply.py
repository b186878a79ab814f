"""Fields of vLLM's API that change the form of a reply, or the length of its prompt, the same for chat and text."""

from typing import Any

from antiphon.app.requests import validators as c
from antiphon.app.requests.fields import MAX_CHOICES, REQUEST_ID, RequestField


def check_truncation(value: Any, path: str) -> None:
    """Checks `truncate_prompt_tokens`: a positive number, or -1."""
    c.integer_between(-1 if value == -1 else 1)(value, path)


REPLY_FIELDS = (
    RequestField(
        "best_of",
        "honoured",
        c.integer_between(1, MAX_CHOICES),
        "At least `n`: samples this number of choices and returns the `n` with the highest mean log-probability of "
        "their tokens, the best first. All are part of the usage. Larger than `n`: not with `stream`.",
    ),
    RequestField(
        "include_stop_str_in_output",
        "honoured",
        c.is_boolean,
        "Not in OpenAI's API. The text ends with the stop string that was found.",
    ),
    RequestField(
        "spaces_between_special_tokens",
        "accepted",
        c.is_boolean,
        "Not in OpenAI's API. No effect, as with any fast tokenizer: special tokens are returned as generated.",
    ),
    RequestField(
        "return_tokens_as_token_ids",
        "honoured",
        c.is_boolean,
        "Not in OpenAI's API. Tokens in `logprobs` are written as `token_id:123`.",
    ),
    RequestField(
        "prompt_logprobs",
        "honoured",
        c.integer_between(0, 20),
        "Not in OpenAI's API. 0 to 20 most likely tokens for each position of the prompt, in vLLM's form. Not with "
        "`stream`.",
    ),
    RequestField(
        "request_id",
        "honoured",
        c.string_like(128, REQUEST_ID),
        "Not in OpenAI's API. The reply's id after `chatcmpl-` or `cmpl-`.",
    ),
)
"""Fields that chat and text completions share."""
