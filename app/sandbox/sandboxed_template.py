"""Chat templates of requests, compiled and rendered in a process of their own.

A template is a program of the client. The sandbox of `harmony.prompt.templates.jinja` limits what it may call and how
large its values get, but not each of its operations: one may hold the interpreter, or take gigabytes. In a process of
its own, its limits of CPU time and memory end it.
"""

import atexit
import pickle
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from functools import cached_property
from typing import Any

import msgspec

from antiphon.app.sandbox.messages import SANDBOX_CPU_LIMIT_S, RenderReply, RenderRequest
from antiphon.app.sandbox.sandbox_process import SandboxProcess
from antiphon.harmony.prompt.templates import template_limits
from antiphon.harmony.prompt.templates.jinja import RefusedError
from antiphon.harmony.rendered_prompt import RenderError

PARAM = "chat_template"
MIN_CPU_LIMIT_S = 0.01
"""CPU time that a rendering gets at least, however little of its time is left."""
TEMPLATE_PROCESS = SandboxProcess("antiphon.app.sandbox.template_worker")
"""The process that renders the templates of all requests, one at a time."""
atexit.register(TEMPLATE_PROCESS.close)
TEMPLATE_EXECUTOR = ThreadPoolExecutor(1, "request-template")
"""Renders prompts with a template of the request, so that those that wait for the process delay no others."""

_cpu_left: ContextVar[list[float]] = ContextVar("cpu_left")


@contextmanager
def limit_template_cpu(seconds: float) -> Iterator[None]:
    """Within this context, templates may use `seconds` of CPU time in total: a prompt may take several renderings."""
    token = _cpu_left.set([seconds])
    try:
        yield
    finally:
        _cpu_left.reset(token)


class SandboxedTemplate:
    """A chat template with the interface of `ChatTemplate`. All methods raise `RenderError` and `SandboxError`."""

    def __init__(self, source: str, process: SandboxProcess = TEMPLATE_PROCESS) -> None:
        self.source, self._process = source, process
        self._facts, _ = self._ask(RenderRequest(source=source))

    @cached_property
    def variables(self) -> frozenset[str] | None:
        """Names that the template may read before it sets them, without the built-in ones; None if unknown."""
        return None if self._facts.variables is None else frozenset(self._facts.variables)

    @cached_property
    def constants(self) -> frozenset[str]:
        """String constants of the template."""
        return frozenset(self._facts.constants)

    def render(
        self,
        context: Mapping[str, Any],
        *,
        now: datetime,
        max_chars: int = template_limits.MAX_RENDERED_CHARS,
        max_steps: int = template_limits.MAX_TEMPLATE_STEPS,
    ) -> str:
        """Runs the template. Raises `RefusedError` if the template fails or raises an error itself."""
        request = RenderRequest(
            source=self.source, context=dict(context), now=now, max_chars=max_chars, max_steps=max_steps
        )
        _, text = self._ask(request)
        return text.decode("utf-8", "surrogatepass")

    def _ask(self, request: RenderRequest) -> tuple[RenderReply, bytes]:
        budget = _cpu_left.get(None) or [SANDBOX_CPU_LIMIT_S]
        if budget[0] <= 0:
            raise _limit_error()
        cpu_limit_s = max(min(budget[0], SANDBOX_CPU_LIMIT_S), MIN_CPU_LIMIT_S)
        answer = self._process.exchange(pickle.dumps(request, pickle.HIGHEST_PROTOCOL), cpu_limit_s=cpu_limit_s)
        if answer is None:
            budget[0] = 0.0
            raise _limit_error()
        budget[0] -= answer.cpu_s
        reply = msgspec.msgpack.decode(answer.header, type=RenderReply)
        if reply.error is not None:
            raise (RefusedError if reply.is_refusal else RenderError)(reply.error, reply.param)
        return reply, answer.payload


def _limit_error() -> RenderError:
    return RenderError("The request's chat template exceeds the limits of time or memory.", PARAM)
