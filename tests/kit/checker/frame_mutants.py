"""Ways to break the bytes of a legal stream of server-sent events."""

from collections.abc import Callable
from dataclasses import dataclass

from tests.kit.checker.legal_streams import LEGAL
from tests.kit.checker.stream_writer import encode_sse


@dataclass(frozen=True)
class FrameMutant:
    """A change of the bytes of the stream `text`."""

    name: str
    change: Callable[[bytes], bytes]
    code: str

    def build(self) -> bytes:
        """Returns the bytes of the broken stream."""
        return self.change(encode_sse(LEGAL["text"]()))


F = FrameMutant
FIRST_END = b"\n\n"

FRAME_MUTANTS = [
    F("byte_order_mark", lambda data: b"\xef\xbb\xbf" + data, "sse-byte-order-mark"),
    F("carriage_returns", lambda data: data.replace(b"\n", b"\r\n"), "sse-line-end"),
    F("last_frame_cut", lambda data: data[: data.rindex(b"data: [DONE]") - 1], "sse-cut-frame"),
    F("frame_cut_inside_its_data", lambda data: data[:-80], "sse-cut-frame"),
    F("byte_of_a_character_lost", lambda data: data.replace(b'"Hel"', b'"\xc3"', 1), "sse-not-utf8"),
    F("latin_1", lambda data: data.replace(b'"Hel"', b'"H\xe9l"', 1), "sse-not-utf8"),
    F("id_field", lambda data: b"id: 1\n" + data, "sse-field"),
    F("retry_field", lambda data: b"retry: 100\n" + data, "sse-field"),
    F("json_without_a_field", lambda data: data.replace(b"data: ", b"", 1), "sse-unknown-field"),
    F("event_without_data", lambda data: b"event: response.created\n\n" + data, "sse-no-data"),
    F("data_in_two_lines", lambda data: data.replace(b'"response":', b'\ndata: "response":', 1), "sse-data-lines"),
    F("name_missing", lambda data: data.replace(b"event: response.created\n", b""), "sse-event-name-missing"),
    F("name_differs", lambda data: data.replace(b"event: response.created", b"event: message"), "sse-event-name"),
    F("data_is_text", lambda data: data.replace(b"\n\n", b"\n\nevent: error\ndata: oops\n\n", 1), "data-not-json"),
    F("data_is_cut", lambda data: data.replace(b"}}\n\n", b"}\n\n", 1), "data-not-json"),
    F("data_is_a_list", lambda data: data.replace(b"\n\n", b"\n\ndata: [1]\n\n", 1), "data-not-object"),
    F(
        "marker_has_a_name",
        lambda data: data.replace(b"data: [DONE]", b"event: done\ndata: [DONE]"),
        "done-marker-name",
    ),
    F("marker_missing", lambda data: data.replace(b"data: [DONE]\n\n", b""), "done-marker-missing"),
    F("frame_after_the_marker", lambda data: data + data[: data.index(FIRST_END) + 2], "frame-after-done-marker"),
    F("marker_twice", lambda data: data + b"data: [DONE]\n\n", "frame-after-done-marker"),
    F("two_names", lambda data: b"event: message\n" + data, "sse-event-name"),
    F("data_has_no_number", lambda data: data.replace(b'"top_p": 1.0', b'"top_p": NaN', 1), "data-not-json"),
    F("data_has_infinity", lambda data: data.replace(b'"top_p": 1.0', b'"top_p": -Infinity', 1), "data-not-json"),
    F(
        "data_is_nested_without_end",
        lambda data: b"event: x\ndata: " + b"[" * 200_000 + b"\n\n" + data,
        "data-not-json",
    ),
    F(
        "key_twice",
        lambda data: data.replace(b'"delta": "Hel"', b'"delta": "Hel", "delta": "Hul"'),
        "data-key-repeated",
    ),
]
