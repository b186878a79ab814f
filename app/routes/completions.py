"""`POST /v1/completions`: starts a turn for each choice of each prompt, and returns them as a text completion."""

from typing import Any

from litestar.response import Response

from antiphon.app.context import AnyRequest, request_models, server_context
from antiphon.app.http.body_parsing import parse_body, run_parser
from antiphon.app.http.endpoints.endpoint import endpoint
from antiphon.app.http.request_state import request_state
from antiphon.app.projections.completions.schema import TextCompletion
from antiphon.app.projections.completions.stream import CompletionStream, final_text_completion
from antiphon.app.requests.completions.body import TextCompletionBody
from antiphon.app.requests.completions.request import read_completion_request
from antiphon.app.route_helpers.engine_ready import wait_until_ready
from antiphon.app.route_helpers.http_replies import final_reply, json_reply, start_prompts, stream_reply


@endpoint("POST", "/v1/completions", body=TextCompletionBody, starts="completions", batch=True, reply=TextCompletion)
async def create_completion(request: AnyRequest) -> Response[Any]:
    """Continues one or more raw prompts, and returns the texts as a stream or in one piece."""
    context = server_context(request)
    body = await parse_body(await request.body())
    await wait_until_ready(request, body)
    size, models = request_state(request.scope).body_bytes, request_models(request)
    parsed = await run_parser(size, read_completion_request, body, models)
    logs = await start_prompts(request, parsed.model, parsed.specs)
    if parsed.form.stream:
        return stream_reply(CompletionStream(logs, parsed.form), context)
    return json_reply(await final_reply(request, final_text_completion(logs, parsed.form), logs))
