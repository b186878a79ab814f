"""`/v1/load_lora_adapter` and `/v1/unload_lora_adapter`, with the shapes of vLLM's endpoints of these names."""

from typing import Any

from litestar.response import Response

from antiphon.app.context import AnyRequest, request_owner, server_context
from antiphon.app.errors import missing_field
from antiphon.app.http.body_parsing import parse_body
from antiphon.app.http.endpoints.endpoint import endpoint
from antiphon.app.requests.fields import decode_body
from antiphon.app.requests.fields.adapters import LoadAdapterBody, UnloadAdapterBody


@endpoint("POST", "/v1/load_lora_adapter", body=LoadAdapterBody, audit="load_adapter", media_types=("text/plain",))
async def load_lora_adapter(request: AnyRequest) -> Response[Any]:
    """Loads an adapter from a folder of `--lora-dir`. Requires `--allow-lora-updates`."""
    body = decode_body(LoadAdapterBody, await parse_body(await request.body()))
    name, path = _require_text(body.lora_name, "lora_name"), _require_text(body.lora_path, "lora_path")
    updates, replace = server_context(request).adapter_updates, body.load_inplace is True
    await updates.load(name, path, request_owner(request), replace=replace, base=body.base_model_name)
    return _success(f"LoRA adapter '{name}' added successfully.")


@endpoint(
    "POST", "/v1/unload_lora_adapter", body=UnloadAdapterBody, audit="unload_adapter", media_types=("text/plain",)
)
async def unload_lora_adapter(request: AnyRequest) -> Response[Any]:
    """Unloads an adapter. Turns that use it run to their end. Requires `--allow-lora-updates`."""
    body = decode_body(UnloadAdapterBody, await parse_body(await request.body()))
    name = _require_text(body.lora_name, "lora_name")
    await server_context(request).adapter_updates.unload(name, request_owner(request))
    return _success(f"LoRA adapter '{name}' removed successfully.")


def _require_text(value: str | None, name: str) -> str:
    if not value:
        raise missing_field(name)
    return value


def _success(text: str) -> Response[Any]:
    return Response(f"Success: {text}", status_code=200, media_type="text/plain")
