"""The four processes of the sandbox, each with a message that it can answer."""

import pickle
from collections.abc import Callable

import msgspec

from antiphon.app.sandbox.grammar_checker import WORKER_MODULE as GRAMMAR_MODULE
from antiphon.app.sandbox.media.media_process import IMAGE_MODULE, PDF_MODULE, MediaProcess
from antiphon.app.sandbox.media.messages import ImageFacts, ImageLimits, InspectRequest, PdfReply, PdfRequest
from antiphon.app.sandbox.messages import CheckRequest, RenderReply, RenderRequest
from antiphon.app.sandbox.sandbox_process import SandboxProcess
from tests.app.media.documents import make_pdf
from tests.syntax import ROOT

TEMPLATE_MODULE = "antiphon.app.sandbox.template_worker"
Exchange = Callable[[], None]
"""Sends a message and checks its reply. Raises `SandboxError`."""
OpenHelper = Callable[[], tuple[SandboxProcess, Exchange]]


def open_image() -> tuple[SandboxProcess, Exchange]:
    process, picture = MediaProcess(IMAGE_MODULE), (ROOT / "samples" / "picture.png").read_bytes()

    def exchange() -> None:
        assert isinstance(process.ask(InspectRequest(ImageLimits()), picture).reply, ImageFacts)

    return process, exchange


def open_pdf() -> tuple[SandboxProcess, Exchange]:
    process, document = MediaProcess(PDF_MODULE), make_pdf("Hello")

    def exchange() -> None:
        reply = process.ask(PdfRequest(0, 1, 9, 99), document).reply
        assert isinstance(reply, PdfReply) and reply.num_pages == 1

    return process, exchange


def open_grammar() -> tuple[SandboxProcess, Exchange]:
    process = SandboxProcess(GRAMMAR_MODULE)

    def exchange() -> None:
        reply = process.exchange(msgspec.msgpack.encode(CheckRequest("lark", 'start: "a"')))
        assert reply is not None and reply.header == b""

    return process, exchange


def open_template() -> tuple[SandboxProcess, Exchange]:
    process = SandboxProcess(TEMPLATE_MODULE)

    def exchange() -> None:
        reply = process.exchange(pickle.dumps(RenderRequest(source="a")), cpu_limit_s=9.0)
        assert reply is not None and msgspec.msgpack.decode(reply.header, type=RenderReply).error is None

    return process, exchange


HELPERS: dict[str, OpenHelper] = {
    "image": open_image,
    "pdf": open_pdf,
    "grammar": open_grammar,
    "template": open_template,
}
