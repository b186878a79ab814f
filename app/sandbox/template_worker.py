"""The process that renders chat templates of requests. Run with `python -P -m antiphon.app.sandbox.template_worker`."""

import pickle
from functools import lru_cache

import msgspec

from antiphon.app.sandbox.messages import RenderReply, RenderRequest, WorkerLimits
from antiphon.app.sandbox.worker import Answer, run_worker
from antiphon.harmony.prompt.templates.jinja import ChatTemplate, RefusedError
from antiphon.harmony.rendered_prompt import RenderError

MAX_TEMPLATES = 16
"""Number of templates that stay compiled."""

_compile = lru_cache(maxsize=MAX_TEMPLATES)(ChatTemplate)


def answer(request: RenderRequest) -> tuple[RenderReply, bytes]:
    """Compiles or renders a template. Returns the reply and the text."""
    try:
        template = _compile(request.source)
        if request.context is None or request.now is None:
            names = template.variables
            variables = None if names is None else sorted(names)
            return RenderReply(variables=variables, constants=sorted(template.constants)), b""
        text = template.render(
            request.context, now=request.now, max_chars=request.max_chars, max_steps=request.max_steps
        )
    except RenderError as error:
        return RenderReply(error=error.message, param=error.param, is_refusal=isinstance(error, RefusedError)), b""
    return RenderReply(), text.encode("utf-8", "surrogatepass")


def _handle(header: bytes, _payload: bytes) -> Answer:
    request: RenderRequest = pickle.loads(header)  # noqa: S301  the server, which is trusted, made it
    reply, text = answer(request)
    return msgspec.msgpack.encode(reply), text, None


if __name__ == "__main__":
    run_worker(lambda: _handle, WorkerLimits())
