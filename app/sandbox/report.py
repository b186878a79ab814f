"""Proves at the start of a server that the sandbox works, and tells operator and client if it does not."""

import threading
from datetime import UTC, datetime

import structlog

from antiphon.app.errors import ApiError
from antiphon.app.sandbox.grammar_checker import GRAMMAR_CHECKER, GrammarChecker
from antiphon.app.sandbox.messages import MEMORY_LIMIT
from antiphon.app.sandbox.sandbox_process import SandboxError
from antiphon.app.sandbox.sandboxed_template import TEMPLATE_PROCESS, SandboxedTemplate

PROOF_DELAY_S = 3.0
"""Seconds after the start of a server until its sandbox is tried, so that this delays no first request."""

_log = structlog.get_logger(__name__)


def report_sandbox_error(error: SandboxError, param: str) -> ApiError:
    """Logs the reason. Returns the error of a request that needs the sandbox: 500, it is not the request's fault."""
    _log.error(f"Sandbox : {error}")
    message = f"The server could not check '{param}', because its sandbox does not work. Its log has the reason."
    return ApiError(500, "sandbox_unavailable", message)


def prove_sandbox(checker: GrammarChecker = GRAMMAR_CHECKER, *, with_templates: bool = False) -> None:
    """Checks that the sandbox works. Logs a line if it does not, or if the server must watch its memory. Blocks.

    `with_templates`: requests may bring templates, which are rendered in a process of their own.
    """
    try:
        checker.prove()
    except SandboxError as error:
        _log.error(f"Sandbox : {error}. A strict tool, a response format or a grammar may be answered with a 500.")
        return
    try:
        if checker.process.memory_is_watched:
            TEMPLATE_PROCESS.watch_memory()
        if with_templates:
            SandboxedTemplate("{{ messages }}").render({"messages": []}, now=datetime.fromtimestamp(0, UTC))
    except SandboxError as error:
        _log.error(f"Sandbox : {error}. A chat template of a request may be answered with a 500.")
        return
    if checker.process.memory_is_watched:
        _log.info("Sandbox : this system does not limit the memory of a process, so the server watches it")
    if missing := ", ".join(name for name in checker.process.missing if name != MEMORY_LIMIT):
        _log.info(f"Sandbox : this system does not offer {missing} to processes that read grammars and templates")


def schedule_proof(*, with_templates: bool) -> threading.Timer:
    """Starts the proof in a thread, after a delay. Cancel it when the server stops."""
    timer = threading.Timer(PROOF_DELAY_S, prove_sandbox, kwargs={"with_templates": with_templates})
    timer.name, timer.daemon = "sandbox-proof", True
    timer.start()
    return timer
