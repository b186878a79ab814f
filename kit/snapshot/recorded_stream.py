"""Streams as they came on the wire, with the requests that asked for them."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from antiphon.kit.json_values import decode_object


class RecordedStream(bytes):
    """A reply as it came: server-sent events. `request` is the body that asked for it, None if it is unknown."""

    request: Mapping[str, Any] | None

    def __new__(cls, data: bytes, request: Mapping[str, Any] | None = None) -> Self:
        """Creates the bytes, with their request."""
        stream = super().__new__(cls, data)
        stream.request = request
        return stream


def read_streams(cassette: str | os.PathLike[str]) -> list[RecordedStream]:
    """Returns the streams in a cassette of `antiphon record`, in order. Raises `CassetteError`, a `ValueError`."""
    from antiphon.kit.cassette.reading import read_cassette  # noqa: PLC0415  only these sources need it

    return [
        RecordedStream(b"".join(frame.data for frame in frames), decode_object(exchange.request.body))
        for exchange in read_cassette(Path(cassette))
        if (frames := exchange.response.frames) is not None
    ]
