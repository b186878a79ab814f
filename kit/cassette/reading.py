"""Reads cassettes. What is wrong is told in one line that names the exchange."""

import base64
import binascii
import json
import re
import tomllib
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from antiphon.kit.cassette.exchanges import (
    CassetteEnding,
    RecordedExchange,
    RecordedFrame,
    RecordedReply,
    RecordedRequest,
)
from antiphon.kit.cassette.frames import build_frame
from antiphon.kit.cassette.toml_text import encode_json
from antiphon.kit.faults import FaultError, WireFault, parse_fault
from antiphon.kit.faults.fault import ApiName

VERSION = 1
HeaderTable = dict[str, str | list[str]]
BODY_KEYS = ("json", "text", "base64")
FRAME_KEYS = ("data", "comment", "raw", "base64")
_API_OF_PATH: dict[str, ApiName] = {
    "/responses": "responses",
    "/chat/completions": "chat",
    "/completions": "completions",
    "/messages": "messages",
}
FRAMING_HEADERS = ("connection", "content-encoding", "content-length", "transfer-encoding")
"""Headers that say how the body is sent, which the server decides."""
_RECORDED_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_HEADER_VALUE = re.compile(r"[^\x00-\x08\x0a-\x1f\x7f\u0100-\U0010ffff]*")


class CassetteError(ValueError):
    """Raised for a file that is no cassette. The message is one line."""


class _FileFrame(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    at_ms: int | float = 0
    event: str | None = None
    data: str | None = None
    comment: str | None = None
    raw: str | None = None
    base64: str | None = None


class _FileMessage(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    headers: HeaderTable = {}
    json: str | None = None
    text: str | None = None
    base64: str | None = None


class _FileRequest(_FileMessage, kw_only=True):
    method: str
    path: str


class _FileReply(_FileMessage, kw_only=True):
    status: int
    at_ms: int | float = 0
    ended: CassetteEnding = "complete"
    events: list[_FileFrame] | None = None


class _FileExchange(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    request: _FileRequest
    response: _FileReply
    name: str = ""
    fault: dict[str, Any] | None = None


def read_cassette(path: Path) -> list[RecordedExchange]:
    """Returns the exchanges of a file. Raises `CassetteError`."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CassetteError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    try:
        return parse_cassette(text)
    except CassetteError as error:
        raise CassetteError(f"{path}: {error}") from None


def parse_cassette(text: str) -> list[RecordedExchange]:
    """Returns the exchanges of a cassette. Raises `CassetteError`."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise CassetteError(f"no TOML: {error}") from None
    version = table.pop("version", None)
    if version != VERSION:
        raise CassetteError(f"version is {version!r}; this program reads version = {VERSION}")
    entries = table.pop("exchange", [])
    if table:
        raise CassetteError(f"unknown key {next(iter(table))!r}; a cassette has version and [[exchange]] tables")
    if not isinstance(entries, list):
        raise CassetteError("exchange must be written as [[exchange]]")
    return [_read_exchange(index, entry) for index, entry in enumerate(entries, 1)]


def _read_exchange(index: int, entry: object) -> RecordedExchange:
    request = entry.get("request") if isinstance(entry, dict) else None
    title = f" ({request.get('method')} {request.get('path')})" if isinstance(request, dict) else ""
    try:
        parsed = msgspec.convert(entry, _FileExchange)
        return RecordedExchange(
            name=parsed.name,
            fault=_read_fault(parsed),
            request=RecordedRequest(
                method=parsed.request.method,
                path=parsed.request.path,
                headers=_read_headers("request", parsed.request.headers),
                body=_read_body("request", parsed.request),
            ),
            response=_read_reply(parsed.response),
        )
    except (msgspec.ValidationError, CassetteError) as error:
        message = str(error).replace("$.", "").replace("`", "")
        raise CassetteError(f"exchange {index}{title}: {message}") from None


def _read_fault(exchange: _FileExchange) -> WireFault | None:
    """Returns the fault of an exchange. Raises `CassetteError`, also for one that its reply cannot have."""
    if exchange.fault is None:
        return None
    try:
        fault = parse_fault(exchange.fault)
        api = _API_OF_PATH.get(urlsplit(exchange.request.path).path.rstrip("/").removeprefix("/v1"))
        if api is not None:
            fault.check_use(api, streamed=exchange.response.events is not None)
    except FaultError as error:
        raise CassetteError(str(error)) from None
    return fault


def _read_reply(reply: _FileReply) -> RecordedReply:
    if not 200 <= reply.status <= 599:
        raise CassetteError(f"response.status is {reply.status}; it must be from 200 to 599")
    frames = None
    if reply.events is not None:
        if any(getattr(reply, key) is not None for key in BODY_KEYS):
            raise CassetteError("response has events and a body; write one of them")
        frames = tuple(_read_frame(index, event) for index, event in enumerate(reply.events))
    headers = _read_headers("response", reply.headers)
    if frames is not None and "content-type" not in (name.lower() for name, _ in headers):
        headers = (("content-type", "text/event-stream"), *headers)
    elif reply.json is not None and "content-type" not in (name.lower() for name, _ in headers):
        headers = (("content-type", "application/json"), *headers)
    return RecordedReply(
        status=reply.status,
        at_ms=int(reply.at_ms),
        headers=headers,
        body=_read_body("response", reply),
        frames=frames,
        ended=reply.ended,
    )


def _read_frame(index: int, event: _FileFrame) -> RecordedFrame:
    keys = {key: getattr(event, key) for key in FRAME_KEYS if getattr(event, key) is not None}
    if len(keys) != 1:
        raise CassetteError(f"response.events[{index}] must have one of {', '.join(FRAME_KEYS)}")
    if event.event is not None:
        if "data" not in keys:
            raise CassetteError(f"response.events[{index}] has event without data")
        keys["event"] = event.event
    try:
        return RecordedFrame(int(event.at_ms), build_frame(keys))
    except binascii.Error as error:
        raise CassetteError(f"response.events[{index}].base64: {error}") from None


def _read_headers(place: str, table: HeaderTable) -> tuple[tuple[str, str], ...]:
    pairs = tuple(
        (name, value) for name, values in table.items() for value in (values if isinstance(values, list) else [values])
    )
    for name, value in pairs:
        if not _RECORDED_HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(value):
            raise CassetteError(f"{place}.headers.{name} is no HTTP header")
        if place == "response" and name.lower() in FRAMING_HEADERS:
            raise CassetteError(f"response.headers.{name} is set by the server; remove it")
    return pairs


def _read_body(place: str, message: _FileMessage) -> bytes:
    given = {key: getattr(message, key) for key in BODY_KEYS if getattr(message, key) is not None}
    if len(given) > 1:
        raise CassetteError(f"{place} has {' and '.join(given)}; write one of them")
    try:
        if "json" in given:
            return encode_json(json.loads(given["json"]))
        return base64.b64decode(given["base64"], validate=True) if "base64" in given else given.get("text", "").encode()
    except ValueError as error:
        raise CassetteError(f"{place}.{next(iter(given))}: {error}") from None
