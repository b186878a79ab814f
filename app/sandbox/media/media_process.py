"""A process that reads pictures or PDFs, seen from the server: messages are structs, limits are the file's fault."""

import msgspec

from antiphon.app.sandbox.media.messages import (
    MEDIA_CPU_LIMIT_S,
    MEDIA_LIMITS,
    FaultReply,
    MediaReply,
    MediaRequest,
)
from antiphon.app.sandbox.sandbox_process import SandboxProcess, close_descriptors

IMAGE_MODULE = "antiphon.app.sandbox.media.image_worker"
PDF_MODULE = "antiphon.app.sandbox.media.pdf_worker"


class MediaAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A reply. The receiver closes `descriptor`."""

    reply: MediaReply
    payload: bytes = b""
    descriptor: int | None = None
    cpu_s: float = 0.0
    """CPU time that the message took."""


class MediaProcess(SandboxProcess):
    """A `SandboxProcess` whose messages are structs: it runs `module`, and may use `cpu_limit_s` for a message."""

    def __init__(self, module: str, cpu_limit_s: float = MEDIA_CPU_LIMIT_S) -> None:
        super().__init__(module, msgspec.structs.replace(MEDIA_LIMITS, cpu_limit_s=cpu_limit_s))

    def ask(self, request: MediaRequest, payload: bytes = b"") -> MediaAnswer:
        """Returns the answer to a message. Raises `SandboxError` if the process does not work."""
        answer = self.exchange(msgspec.msgpack.encode(request), payload)
        if answer is None:
            return MediaAnswer(reply=FaultReply("too_slow"))
        try:
            reply = msgspec.msgpack.decode(answer.header, type=MediaReply)
        except (msgspec.DecodeError, UnicodeDecodeError):
            close_descriptors([answer.descriptor])
            raise self.refuse("a reply that is none") from None
        return MediaAnswer(reply=reply, payload=answer.payload, descriptor=answer.descriptor, cpu_s=answer.cpu_s)
