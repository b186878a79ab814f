"""Tables of the fields of `/v1/load_lora_adapter` and `/v1/unload_lora_adapter`, with vLLM's names."""

from antiphon.app.requests import validators as c
from antiphon.app.requests.fields import RequestField

MAX_PATH_CHARS = 4096

LOAD_ADAPTER_FIELDS = (
    RequestField("lora_name", "honoured", c.string_like(256), "Required. The model name of the adapter."),
    RequestField(
        "lora_path",
        "honoured",
        c.string_like(MAX_PATH_CHARS),
        "Required. A folder that PEFT has saved, in one of `--lora-dir`: its path, or its path from there.",
    ),
    RequestField(
        "load_inplace", "honoured", c.is_boolean, "True: replaces an adapter with this name, which otherwise is a 409."
    ),
    RequestField(
        "base_model_name",
        "honoured",
        c.string_like(256),
        "The model that the adapter changes. Required if the server has several.",
    ),
)
"""Fields of `POST /v1/load_lora_adapter`."""

UNLOAD_ADAPTER_FIELDS = (
    RequestField("lora_name", "honoured", c.string_like(256), "Required. The model name of the adapter."),
    RequestField("lora_int_id", "accepted", c.integer_between(0), "vLLM's number of the adapter."),
)
"""Fields of `POST /v1/unload_lora_adapter`."""
