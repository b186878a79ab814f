"""The process that renders chat templates of requests. Run with `python -P -m antiphon.app.sandbox.template_worker`."""

import pickle
import signal
import time
from functools import lru_cache

import msgspec

from antiphon.app.sandbox.messages import RenderReply, RenderRequest
from antiphon.app.sandbox.worker import run_worker
from antiphon.harmony.prompt.jinja import ChatTemplate, RefusedError
from antiphon.harmony.rendered_prompt import RenderError

MAX_TEMPLATES = 16
"""Number of templates that stay compiled."""

_compile = lru_cache(maxsize=MAX_TEMPLATES)(ChatTemplate)


def answer(request: RenderRequest) -> RenderReply:
    """Compiles or renders a template."""
    try:
        template = _compile(request.source)
        if request.context is None or request.now is None:
            names = template.variables
            variables = None if names is None else sorted(names)
            return RenderReply(variables=variables, constants=sorted(template.constants))
        text = template.render(
            request.context, now=request.now, max_chars=request.max_chars, max_steps=request.max_steps
        )
    except RenderError as error:
        return RenderReply(error=error.message, param=error.param, is_refusal=isinstance(error, RefusedError))
    return RenderReply(text=text.encode("utf-8", "surrogatepass"))


def _handle(message: bytes) -> bytes:
    started = time.thread_time()
    request: RenderRequest = pickle.loads(message)  # noqa: S301  the server, which is trusted, made it
    signal.setitimer(signal.ITIMER_PROF, request.cpu_limit_s)
    reply = answer(request)
    return msgspec.msgpack.encode(msgspec.structs.replace(reply, cpu_s=time.thread_time() - started))


if __name__ == "__main__":
    run_worker(lambda: _handle)
