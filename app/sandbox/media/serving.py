"""Main loop of the processes that read pictures and PDFs: that of the sandbox, with structs as messages."""

from collections.abc import Callable

import msgspec

from antiphon.app.sandbox.media.messages import MEDIA_LIMITS, MediaReply, MediaRequest
from antiphon.app.sandbox.worker import Answer, Handle, run_worker

MediaResult = tuple[MediaReply, bytes, int | None]
"""Reply, payload, and a descriptor that is sent with it and then closed."""
HandleMedia = Callable[[MediaRequest, bytes], MediaResult]


def serve_media(prepare: Callable[[], HandleMedia]) -> None:
    """Serves until the server closes the socket. `prepare` creates the handler."""
    run_worker(lambda: _decode_messages(prepare()), MEDIA_LIMITS)


def _decode_messages(handle: HandleMedia) -> Handle:
    decode = msgspec.msgpack.Decoder(MediaRequest).decode

    def answer(header: bytes, payload: bytes) -> Answer:
        reply, reply_payload, descriptor = handle(decode(header), payload)
        return msgspec.msgpack.encode(reply), reply_payload, descriptor

    return answer
