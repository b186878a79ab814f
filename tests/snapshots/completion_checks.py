"""Checks of what a text completion has besides its text: tokens, offsets and usage."""

from typing import Any

from antiphon.harmony.format import ModelFormat
from tests.snapshots.run_case import USER_TEXT

ECHO = USER_TEXT
"""What the text of a completion with `echo` begins with."""
ALL_DETAILS = {"logprobs": 2, "return_token_ids": True, "echo": True}
"""Request fields that show everything that a completion can show."""


def detokenize(tokens: list[int], model_format: ModelFormat) -> str:
    """Returns the text of the tokens without control tokens, which are in neither API's text."""
    special: Any = model_format.passthrough.vocabulary.special_ids
    data = b"".join(model_format.decode_token(token)[1] for token in tokens if token not in special)
    return data.decode("utf-8", "replace")


def check_details(completion: dict[str, Any]) -> None:
    """Checks that tokens, offsets and usage agree."""
    usage = completion["usage"]
    assert usage["completion_tokens"] == sum(len(choice["token_ids"]) for choice in completion["choices"])
    for choice in completion["choices"]:
        columns, num_prompt = choice["logprobs"], len(choice["prompt_token_ids"])
        assert usage["prompt_tokens"] == num_prompt
        assert {len(column) for column in columns.values()} == {num_prompt + len(choice["token_ids"])}
        assert columns["token_logprobs"][0] is None and None not in columns["token_logprobs"][1:]
        offsets = columns["text_offset"]
        assert offsets == sorted(offsets) and offsets[0] == 0 and offsets[-1] <= len(choice["text"])
        ends = [*offsets[1:], len(choice["text"])]
        for token, start, end in zip(columns["tokens"], offsets, ends, strict=True):
            text = choice["text"][start:end]
            assert text in (token, "") or token.startswith("bytes:"), "an offset is where its token begins"
