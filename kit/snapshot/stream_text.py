"""A whole stream as text, for snapshots: the same text for the same events, from any server and through any SDK."""

from typing import Any

from antiphon.kit.json_values import Json
from antiphon.kit.snapshot.event_lines import LineOptions, format_chunk, format_event, format_response
from antiphon.kit.snapshot.id_numbers import IdNumbers
from antiphon.kit.snapshot.merging import merge_chunks, merge_deltas
from antiphon.kit.snapshot.sources import is_chat, is_whole_response, read_events

HIDDEN_REASONING = "…"


class StreamText(str):
    """The lines of a stream."""

    __slots__ = ()


def format_stream(source: object, *, merge: bool = True, usage: bool = False) -> StreamText:
    """Returns the lines of a stream: events, SDK objects, server-sent events or a recorded file.

    With `merge`, each text has one delta, and sequence numbers are left out, since they count the deltas. `usage` shows
    token counts, which change with every word of the prompt.
    """
    if isinstance(source, StreamText):
        return source
    events = [_hide_secrets(event) for event in read_events(source)]
    options, numbers = LineOptions(sequence_numbers=not merge, usage=usage), IdNumbers()
    if is_chat(events):
        chunks = merge_chunks(events) if merge else events
        lines = [format_chunk(chunk, numbers, options) for chunk in chunks]
    else:
        lines = [_format_entry(event, numbers, options) for event in (merge_deltas(events) if merge else events)]
    return StreamText("".join(f"{line}\n" for line in lines if line).lstrip("\n"))


def _format_entry(event: Json, numbers: IdNumbers, options: LineOptions) -> str:
    if is_whole_response(event):
        return f"response  {format_response(numbers.number_ids(event), options)}"
    separator = "\n" if event.get("type") == "response.created" else ""  # an agent's stream holds several responses
    return separator + format_event(event, numbers, options)


def _hide_secrets(value: Any) -> Any:
    if isinstance(value, list):
        return [_hide_secrets(inside) for inside in value]
    if not isinstance(value, dict):
        return value
    return {
        key: HIDDEN_REASONING if key == "encrypted_content" and inside else _hide_secrets(inside)
        for key, inside in value.items()
    }
