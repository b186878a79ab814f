"""Finds the recorded exchange that answers a request."""

import json
import re
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any, Literal
from urllib.parse import parse_qsl, urlsplit

import msgspec

from antiphon.kit.cassette.exchanges import RecordedExchange, RecordedRequest
from antiphon.kit.findings import quote

MatchMode = Literal["body", "exact", "order"]
"""body: method, path and body without what varies; exact: the whole body; order: the next one of the path."""

VOLATILE_KEYS = ("client_metadata", "prompt_cache_key", "safety_identifier", "user")
"""Top-level keys of a request that differ from run to run and do not change the reply."""
VOLATILE_ITEM_KEYS = ("id", "internal_chat_message_metadata_passthrough")
"""Keys of input items. Clients invent ids for items that they write themselves; call_id stays."""
VOLATILE_TEXTS = (
    (re.compile(r"Chunk ID: \w+"), "Chunk ID: *"),
    (re.compile(r"Wall time: [\d.]+ seconds"), "Wall time: * seconds"),
    (re.compile(r"<(cwd|current_date|timezone|shell)>[^<]*</\1>"), r"<\1>*</\1>"),
)
"""Parts of Codex's texts that differ from run to run: times, dates and folders."""
SHOWN_CHARACTERS = 60
_NOTHING = object()
"""Stands for a value that one of two bodies does not have."""


class NoMatchError(Exception):
    """Raised for a request that was not recorded. The message names the nearest one and the first difference."""


class _ComparedExchange(msgspec.Struct):
    """A recorded exchange, as requests are compared with it."""

    index: int
    exchange: RecordedExchange
    place: tuple[str, str, str]
    value: Any
    key: str
    is_played: bool = False


class ExchangeMatcher:
    """Chooses exchanges. Equal requests get their exchanges in recorded order, and then the last one again.

    In the mode `order`, each exchange answers one request.
    """

    def __init__(self, exchanges: Sequence[RecordedExchange], mode: MatchMode = "body") -> None:
        self._mode = mode
        self._candidates = [self._read_candidate(index, each) for index, each in enumerate(exchanges, 1)]

    def find_exchange(self, request: RecordedRequest) -> tuple[int, RecordedExchange]:
        """Returns the number of an exchange, from 1, and the exchange. Raises `NoMatchError`."""
        place, value = find_place(request), self._normalize_body(request.body)
        there = [each for each in self._candidates if each.place == place]
        if not there:
            recorded = sorted({each.exchange.title for each in self._candidates})
            raise NoMatchError(
                f"no exchange of {request.method} {request.path} was recorded; recorded: {_list(recorded)}"
            )
        key = _make_key(value)
        equal = there if self._mode == "order" else [each for each in there if each.key == key]
        chosen = next((each for each in equal if not each.is_played), None)
        if chosen is None and equal and self._mode != "order":
            chosen = equal[-1]
        if chosen is None:
            raise NoMatchError(self._explain(request, there, value))
        chosen.is_played = True
        return chosen.index, chosen.exchange

    def _read_candidate(self, index: int, exchange: RecordedExchange) -> _ComparedExchange:
        value = self._normalize_body(exchange.request.body)
        return _ComparedExchange(index, exchange, find_place(exchange.request), value, _make_key(value))

    def _normalize_body(self, body: bytes) -> Any:
        try:
            value = json.loads(body)
        except ValueError:
            return body.decode("latin-1")
        return value if self._mode == "exact" else drop_volatile(value)

    def _explain(self, request: RecordedRequest, there: Sequence[_ComparedExchange], value: Any) -> str:
        title = f"{request.method} {request.path}"
        if self._mode == "order":
            return f"all {len(there)} recorded exchanges of {title} have been played"
        differences = [(each, list(find_differences(each.value, value))) for each in there]
        nearest, found = min(differences, key=lambda pair: len(pair[1]))
        path, recorded, asked = found[0]
        return (
            f"no recorded exchange matches {title}; the nearest is exchange {nearest.index}, which differs at "
            f"{path or 'the body'}: recorded {recorded}, but got {asked}"
        )


def find_place(request: RecordedRequest) -> tuple[str, str, str]:
    """Returns method, path and sorted query of a request."""
    parts = urlsplit(request.path)
    pairs = sorted(parse_qsl(parts.query, keep_blank_values=True))
    return request.method, parts.path.rstrip("/"), json.dumps(pairs)


def drop_volatile(value: Any) -> Any:
    """Returns the body of a request without what differs from run to run."""
    if not isinstance(value, dict):
        return value
    kept = {key: each for key, each in value.items() if key not in VOLATILE_KEYS}
    if isinstance(kept.get("input"), list):
        kept["input"] = [_drop_item_keys(item) for item in kept["input"]]
    return _mask_texts(kept)


def _drop_item_keys(item: Any) -> Any:
    if not isinstance(item, dict) or item.get("type") == "item_reference":
        return item
    return {key: each for key, each in item.items() if key not in VOLATILE_ITEM_KEYS}


def _mask_texts(value: Any) -> Any:
    if isinstance(value, str):
        for pattern, replacement in VOLATILE_TEXTS:
            value = pattern.sub(replacement, value)
        return value
    if isinstance(value, list):
        return [_mask_texts(each) for each in value]
    return {key: _mask_texts(each) for key, each in value.items()} if isinstance(value, dict) else value


def _make_key(value: Any) -> str:
    """Returns a text that is equal for equal JSON values: 1 and 1.0 are the same number."""
    return json.dumps(_unify_numbers(value), sort_keys=True)


def _unify_numbers(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_unify_numbers(each) for each in value]
    return {key: _unify_numbers(each) for key, each in value.items()} if isinstance(value, dict) else value


def find_differences(recorded: Any, asked: Any, path: str = "") -> Iterator[tuple[str, str, str]]:
    """Yields where two JSON values differ, with both values as short texts."""
    if isinstance(recorded, dict) and isinstance(asked, dict):
        for key in dict.fromkeys((*recorded, *asked)):
            place = f"{path}.{key}" if path else key
            yield from find_differences(recorded.get(key, _NOTHING), asked.get(key, _NOTHING), place)
    elif isinstance(recorded, list) and isinstance(asked, list):
        for index, pair in enumerate(zip_longest(recorded, asked, fillvalue=_NOTHING)):
            yield from find_differences(*pair, f"{path}[{index}]")
    elif recorded is _NOTHING or asked is _NOTHING or _make_key(recorded) != _make_key(asked):
        yield path, *_show_texts(recorded, asked)


def _show_texts(recorded: Any, asked: Any) -> tuple[str, str]:
    """Returns both values; of long texts, the part around the first difference."""
    if isinstance(recorded, str) and isinstance(asked, str):
        start = next((i for i, pair in enumerate(zip(recorded, asked, strict=False)) if pair[0] != pair[1]), 0)
        if (first := max(start - SHOWN_CHARACTERS // 2, 0)) > 0:
            recorded, asked = f"…{recorded[first:]}", f"…{asked[first:]}"
    shown = ["nothing" if value is _NOTHING else quote(value, SHOWN_CHARACTERS) for value in (recorded, asked)]
    return shown[0], shown[1]


def _list(titles: Sequence[str]) -> str:
    return ", ".join(titles[:5]) + (" …" if len(titles) > 5 else "") or "nothing"
