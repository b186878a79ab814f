"""Prints the fields of the SDK's Responses requests with the keys of their objects, and what it reads in replies."""

import json
import sys
import typing

import openai
from openai.types.responses import Response
from openai.types.responses.response_create_params import (
    ResponseCreateParamsNonStreaming,
    ResponseCreateParamsStreaming,
)
from typing_extensions import get_type_hints, is_typeddict


def list_keys(annotation: object) -> list[str]:
    """Returns the keys of an object, or of the entries of an array of objects of one kind."""
    if is_typeddict(annotation):
        return sorted(annotation.__annotations__)
    kinds = [list_keys(each) for each in typing.get_args(annotation)]
    found = [keys for keys in kinds if keys]
    return found[0] if len(found) == 1 else []


def list_fields() -> dict[str, list[str]]:
    hints = get_type_hints(ResponseCreateParamsNonStreaming) | get_type_hints(ResponseCreateParamsStreaming)
    return {name: list_keys(annotation) for name, annotation in hints.items()}


def read_replies(url: str) -> dict[str, object]:
    client = openai.OpenAI(base_url=url, api_key="none", max_retries=0)
    update = {"type": "configuration_update", "reasoning": {"effort": "low"}}
    user = {"role": "user", "content": "Hi"}
    first = client.responses.create(model="scripted", input=[update, user], service_tier="flex")
    warm = client.responses.create(model="scripted", input="Hi", prompt_cache_options={"prewarm": True, "ttl": "12h"})
    late = client.responses.create(
        model="scripted", input="Hi", background=True, background_options={"completion_window": "8h"}
    )
    compared = [
        client.responses.create(model="scripted", input=text, prompt_cache_options={"comparison_response_id": each})
        for text, each in (("Hi", first.id), ("Cached", first.id), ("Cached", warm.id), ("Hi", "resp_none"))
    ]
    second = client.responses.create(
        model="scripted",
        input="Cached",
        previous_response_id=first.id,
        prompt_cache_options={"comparison_response_id": first.id},
    )
    for response in (first, warm, late, *compared, second):
        Response.model_validate(response.to_dict(), strict=False)
    items = client.responses.input_items.list(first.id).data
    return {
        "tier": first.service_tier,
        "effort": [first.reasoning.effort, second.reasoning.effort],
        "warm": [warm.status, warm.output, warm.prompt_cache_options.to_dict()],
        "late": late.status,
        "diagnostics": [type(each.prompt_cache_diagnostics).__name__ for each in (*compared, second)],
        "items": sorted(type(item).__name__ for item in items),
    }  # fmt: skip


print(json.dumps({"version": openai.__version__, "fields": list_fields(), "replies": read_replies(sys.argv[1])}))
