"""The text of a cassette: one table for each exchange, in the form in which a person reads it best."""

import base64
import json
import re
from collections.abc import Iterable

import msgspec

from antiphon.kit.cassette.exchanges import RecordedExchange, RecordedReply, RecordedRequest
from antiphon.kit.cassette.frames import describe_frame
from antiphon.kit.line_ends import LINE_SEPARATORS, escape_line_separators

CASSETTE_HEADER = """\
# A cassette: requests to a server of language models, and its replies. `antiphon replay FILE` serves it.
# It may be edited; the page docs/cassettes.md describes it.
version = 1
"""
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_ENDING_QUOTE = re.compile(r'"(?=""|\Z)')
"""A quotation mark that could be the first of the three that end a string in several lines."""
_TOML_CONTROL = re.compile(rf"[\x00-\x08\x0b-\x1f\x7f{LINE_SEPARATORS}]")
"""Characters that a literal string does not have; a line feed may be in one of several lines."""


def format_exchange(exchange: RecordedExchange) -> str:
    """Returns the text of one exchange."""
    lines = ["", "[[exchange]]"]
    if exchange.name:
        lines.append(f"name = {format_string(exchange.name)}")
    if exchange.fault is not None:
        fields = msgspec.to_builtins(exchange.fault).items()
        lines.append(f"fault = {{ {', '.join(f'{key} = {_format_value(value)}' for key, value in fields)} }}")
    return "\n".join([*lines, *_format_request(exchange.request), *_format_reply(exchange.response), ""])


def _format_request(request: RecordedRequest) -> Iterable[str]:
    yield "[exchange.request]"
    yield f"method = {format_string(request.method)}"
    yield f"path = {format_string(request.path)}"
    if request.headers:
        yield f"headers = {_format_headers(request.headers)}"
    if request.body:
        yield _format_body(request.body, is_request=True)


def _format_reply(reply: RecordedReply) -> Iterable[str]:
    yield "\n[exchange.response]"
    yield f"status = {reply.status}"
    yield f"at_ms = {reply.at_ms}"
    if reply.headers:
        yield f"headers = {_format_headers(reply.headers)}"
    if reply.ended != "complete":
        yield f"ended = {format_string(reply.ended)}"
    if reply.frames is not None:
        yield "events = ["
        for frame in reply.frames:
            keys = "".join(f", {key} = {format_string(text)}" for key, text in describe_frame(frame.data).items())
            yield f"  {{ at_ms = {frame.at_ms}{keys} }},"
        yield "]"
    elif reply.body:
        yield _format_body(reply.body, is_request=False)


def _format_body(body: bytes, *, is_request: bool) -> str:
    """Returns the line of a body. JSON is indented; that of a reply only if the same bytes can be made of it again."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return f'base64 = "{base64.b64encode(body).decode()}"'
    try:
        value = json.loads(text)
    except ValueError:
        return f"text = {format_string(text)}"
    if is_request or encode_json(value) == body:
        return f"json = {format_string(json.dumps(value, ensure_ascii=False, indent=2), is_block=True)}"
    return f"text = {format_string(text)}"


def encode_json(value: object) -> bytes:
    """Returns JSON as it is sent: without white space. Half a surrogate pair is escaped."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    try:
        return text.encode()
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":")).encode()


def _format_headers(headers: Iterable[tuple[str, str]]) -> str:
    values: dict[str, list[str]] = {}
    for name, value in headers:
        values.setdefault(name, []).append(value)
    fields = (
        f"{_format_key(name)} = {_format_value(each if len(each) > 1 else each[0])}" for name, each in values.items()
    )
    return f"{{ {', '.join(fields)} }}"


def _format_key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else _format_basic(key)


def _format_value(value: object) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_format_value, value))}]"
    return format_string(value) if isinstance(value, str) else json.dumps(value)


def format_string(text: str, *, is_block: bool = False) -> str:
    """Returns a TOML string: literal where that is possible, so that JSON stands without escapes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        text = text.encode(errors="replace").decode()  # TOML has no half characters
    has_control = bool(_TOML_CONTROL.search(text))
    if not has_control and not is_block and "\n" not in text and "'" not in text:
        return f'"{text}"' if '"' not in text and "\\" not in text else f"'{text}'"
    if not has_control and "'''" not in text and not text.endswith("'"):
        return f"'''\n{text}'''" if is_block or text.startswith("\n") else f"'''{text}'''"
    return _format_basic_lines(text) if is_block else _format_basic(text)


def _format_basic_lines(text: str) -> str:
    """Returns a string in several lines, with escapes."""
    escaped = _ENDING_QUOTE.sub(lambda _: '\\"', text.replace("\\", "\\\\"))
    escaped = _TOML_CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", escaped)
    return f'"""\n{escaped}"""'


def _format_basic(text: str) -> str:
    escaped = json.dumps(text, ensure_ascii=False)  # JSON's escapes are those of TOML, but for DEL
    return escape_line_separators(escaped).replace("\x7f", "\\u007f")
