"""Bodies of `/v1/load_lora_adapter` and `/v1/unload_lora_adapter`, with vLLM's names."""

from typing import Annotated

from msgspec import Meta

from antiphon.app.requests.fields import Accepted, Honoured, RequestBody
from antiphon.app.requests.fields.common import Label256, NonNegativeInt

MAX_PATH_CHARS = 4096


class LoadAdapterBody(RequestBody, frozen=True, kw_only=True):
    """Body of `POST /v1/load_lora_adapter`."""

    lora_name: Honoured[Label256] = None
    """Required. The model name of the adapter."""
    lora_path: Honoured[Annotated[str, Meta(max_length=MAX_PATH_CHARS)]] = None
    """Required. A folder that PEFT has saved, in one of `--lora-dir`: its path, or its path from there."""
    load_inplace: Honoured[bool] = None
    """True: replaces an adapter with this name, which otherwise is a 409."""
    base_model_name: Honoured[Label256] = None
    """The model that the adapter changes. Required if the server has several."""


class UnloadAdapterBody(RequestBody, frozen=True, kw_only=True):
    """Body of `POST /v1/unload_lora_adapter`."""

    lora_name: Honoured[Label256] = None
    """Required. The model name of the adapter."""
    lora_int_id: Accepted[NonNegativeInt] = None
    """vLLM's number of the adapter."""
