"""`antiphon record`: a proxy that appends each exchange to a cassette when it ends."""

import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import get_args

from msgspec.structs import replace

from antiphon.kit.cassette.exchanges import (
    CassetteEnding,
    RecordedExchange,
    RecordedFrame,
    RecordedReply,
    RecordedRequest,
)
from antiphon.kit.cassette.reading import CassetteError, read_cassette
from antiphon.kit.cassette.redaction import SECRET_HEADER, Redactor
from antiphon.kit.cassette.toml_text import CASSETTE_HEADER, format_exchange
from antiphon.kit.faults.frames import FrameSplitter
from antiphon.kit.proxy.call_guard import ExchangeObserver
from antiphon.kit.proxy.decoding import BodyDecoder, create_decoder, decode_body
from antiphon.kit.proxy.messages import ExchangeEnding, HeaderList, IncomingRequest, find_header, media_type
from antiphon.kit.proxy.proxy import open_proxy
from antiphon.kit.terminal_output import print_line

KEPT_REQUEST_HEADERS = frozenset(
    "accept content-type openai-beta anthropic-beta anthropic-version originator user-agent".split()
)
"""Headers of requests that tell a reader something. Those with secrets are kept by name, without their values."""
DROPPED_REPLY_HEADERS = frozenset(
    "connection content-encoding content-length date keep-alive server trailer transfer-encoding upgrade".split()
)
"""Headers that the player sets itself."""


class CassetteWriter:
    """Appends exchanges to a file, each in one write: a crash loses at most the exchanges that run."""

    def __init__(self, path: Path, redactor: Redactor, *, append: bool = False) -> None:
        self._redactor = redactor
        self.num_exchanges = 0
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | (0 if append else os.O_EXCL)
        if append and path.exists() and path.stat().st_size:
            read_cassette(path)
        try:
            self._file = os.open(path, flags, 0o600)
        except FileExistsError:
            raise CassetteError(f"{path} exists; remove it, or add --append") from None
        except OSError as error:
            raise CassetteError(f"{path}: {error.strerror}") from None
        if os.fstat(self._file).st_size == 0:
            self._write(CASSETTE_HEADER)

    def add_exchange(self, exchange: RecordedExchange) -> None:
        """Appends an exchange without its secrets. Raises `OSError`, and leaves the file as it was."""
        self._write(format_exchange(redact_exchange(exchange, self._redactor)))
        self.num_exchanges += 1

    def close(self) -> None:
        """Closes the file, after its data are on the disk."""
        os.fsync(self._file)
        os.close(self._file)

    def _write(self, text: str) -> None:
        data, size = text.encode(), os.fstat(self._file).st_size
        try:
            while data:
                data = data[os.write(self._file, data) :]
        except OSError:
            os.ftruncate(self._file, size)
            raise


def redact_exchange(exchange: RecordedExchange, redactor: Redactor) -> RecordedExchange:
    """Returns an exchange without its secrets: first those in their places, then their values wherever they are."""
    request, reply = exchange.request, exchange.response
    path = redactor.redact_path(request.path)
    request_headers = redactor.redact_headers(request.headers)
    reply_headers = redactor.redact_headers(reply.headers)
    request_body, reply_body = redactor.redact_json(request.body), redactor.redact_json(reply.body)
    frames = [_redact_frame(frame, redactor) for frame in reply.frames or ()]
    kept = [(name, value) for name, value in request_headers if _is_kept(name)]
    return RecordedExchange(
        request=replace(
            request,
            path=redactor.redact_text(path),
            headers=_redact_values(kept, redactor),
            body=redactor.redact_bytes(request_body),
        ),
        response=replace(
            reply,
            headers=_redact_values(reply_headers, redactor),
            body=redactor.redact_bytes(reply_body),
            frames=None
            if reply.frames is None
            else tuple(RecordedFrame(frame.at_ms, redactor.redact_bytes(frame.data)) for frame in frames),
        ),
    )


def _is_kept(name: str) -> bool:
    return name in KEPT_REQUEST_HEADERS or bool(SECRET_HEADER.search(name))


def _redact_values(headers: list[tuple[str, str]], redactor: Redactor) -> tuple[tuple[str, str], ...]:
    return tuple((name, redactor.redact_text(value)) for name, value in headers)


def _redact_frame(frame: RecordedFrame, redactor: Redactor) -> RecordedFrame:
    """Returns a frame whose data lines are without the values of secret keys."""
    lines = frame.data.split(b"\n")
    redacted = [b"data: " + redactor.redact_json(line[6:]) if line.startswith(b"data: {") else line for line in lines]
    return RecordedFrame(frame.at_ms, b"\n".join(redacted))


class ExchangeRecorder(ExchangeObserver):
    """Collects one exchange, and writes it at its end."""

    def __init__(self, head: IncomingRequest, writer: CassetteWriter, print_line: Callable[[str], None]) -> None:
        self._head, self._writer, self._print_line = head, writer, print_line
        self._started_at = time.monotonic()
        self._request_body = b""
        self._status = self._at_ms = 0
        self._headers: HeaderList = ()
        self._decoder: BodyDecoder | None = None
        self._splitter: FrameSplitter | None = None
        self._frames: list[RecordedFrame] = []
        self._body: list[bytes] = []

    def on_request(self, body: bytes) -> None:
        """Keeps the request's body, decoded."""
        self._request_body = decode_body(body, find_header(self._head.headers, "content-encoding"))

    def on_reply(self, status: int, headers: HeaderList) -> None:
        """Keeps the head of the reply."""
        self._status, self._headers, self._at_ms = status, headers, self._measure_ms()
        self._decoder = create_decoder(find_header(headers, "content-encoding"))
        if media_type(headers) == "text/event-stream":
            self._splitter = FrameSplitter()

    def on_data(self, data: bytes) -> None:
        """Keeps a part of the reply."""
        assert self._decoder is not None
        data = self._decoder.decompress(data)
        if self._splitter is None:
            self._body.append(data)
            return
        at_ms = self._measure_ms()
        self._frames += [RecordedFrame(at_ms, frame) for frame in self._splitter.feed(data)]

    def on_end(self, ending: ExchangeEnding) -> None:
        """Writes the exchange. One without a reply is not written."""
        title = f"{self._head.method} {self._head.path}"
        if ending == "unreachable" or not self._status:
            self._print_line(f"{title}: not recorded, because there was no reply")
            return
        if self._splitter is not None and (rest := self._splitter.take_rest()):
            self._frames.append(RecordedFrame(self._measure_ms(), rest))
        try:
            self._writer.add_exchange(self._build_exchange(ending))
        except OSError as error:
            self._print_line(f"{title}: not recorded: {error.strerror}")
            return
        parts = f"{len(self._frames)} events" if self._splitter is not None else f"{sum(map(len, self._body))} bytes"
        self._print_line(f"{self._writer.num_exchanges:4} {title} {self._status}: {parts}")

    def on_failure(self) -> None:
        """Tells that the exchange is not recorded, and why the log has an error."""
        self._print_line(f"{self._head.method} {self._head.path}: not recorded; see the error above")

    def _build_exchange(self, ending: ExchangeEnding) -> RecordedExchange:
        assert ending in get_args(CassetteEnding) and ending != "unreachable"
        headers = _decode_headers(self._headers)
        return RecordedExchange(
            request=RecordedRequest(
                method=self._head.method,
                path=self._head.target,
                headers=_decode_headers(self._head.headers),
                body=self._request_body,
            ),
            response=RecordedReply(
                status=self._status,
                at_ms=self._at_ms,
                headers=tuple((name, value) for name, value in headers if name not in DROPPED_REPLY_HEADERS),
                body=b"".join(self._body),
                frames=None if self._splitter is None else tuple(self._frames),
                ended=ending,
            ),
        )

    def _measure_ms(self) -> int:
        return round((time.monotonic() - self._started_at) * 1e3)


def _decode_headers(headers: HeaderList) -> tuple[tuple[str, str], ...]:
    return tuple((name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in headers)


@asynccontextmanager
async def open_recorder(
    upstream_url: str,
    path: Path,
    host: str = "127.0.0.1",
    port: int = 0,
    *,
    api_key: str | None = None,
    append: bool = False,
    print_line: Callable[[str], None] = print_line,
) -> AsyncIterator[str]:
    """Runs a recording proxy until the block ends. Yields the base URL for clients.

    `api_key` is sent to the server in place of the client's. WebSockets get 426, so that clients use POST.
    Raises `CassetteError`, `UpstreamUrlError` and `WireServerError`.
    """
    writers: list[CassetteWriter] = []

    def create_recorder(head: IncomingRequest) -> ExchangeRecorder:
        return ExchangeRecorder(head, writers[0], print_line)

    try:
        async with open_proxy(upstream_url, host, port, create_recorder, api_key=api_key) as url:
            # Only now: a wrong URL or a used port leaves no empty file. No request is read before the next await.
            writers.append(CassetteWriter(path, Redactor([api_key] if api_key else []), append=append))
            yield url
    finally:
        for writer in writers:
            writer.close()
