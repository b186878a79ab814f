"""The OpenAI Agents SDK over a connection that resumes broken streams, as a client of a durable server does.

The program is run as `python PROGRAM TASK`. The task is a JSON object: `url`, `label`, `prompt` and `background`. It
prints {text, items, resumed}: the answer, the types of the new items, and how often a stream was resumed.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator

import httpx
from agents import Agent, HostedMCPTool, ModelSettings, OpenAIResponsesModel, Runner, set_tracing_disabled
from openai import AsyncOpenAI

set_tracing_disabled(True)
TASK = json.loads(sys.argv[1])
RETRY_S = 0.05
RESUMED: list[int] = []
"""Last event before each break."""


class ResumedBody(httpx.AsyncByteStream):
    """The events of a response, each whole. After a break, the rest comes from `GET …?stream=true&starting_after=N`."""

    def __init__(self, inner: httpx.AsyncBaseTransport, base: httpx.URL, first: httpx.Response) -> None:
        self._inner, self._base, self._reply = inner, base, first
        self._id, self._last, self._has_ended = "", -1, False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            buffer = b""
            try:
                async for piece in self._reply.aiter_raw():
                    *events, buffer = (buffer + piece).split(b"\n\n")
                    for event in events:
                        self._note(event)
                        yield event + b"\n\n"
            except httpx.HTTPError:
                pass
            if self._has_ended:
                return
            await self._reconnect()

    def _note(self, event: bytes) -> None:
        _, found, data = event.partition(b"data: {")
        if found:
            value = json.loads(b"{" + data)
            self._last = value["sequence_number"]
            self._id = self._id or value["response"]["id"]
            kind = value["type"]
            self._has_ended = kind in ("response.completed", "response.failed", "response.incomplete")

    async def _reconnect(self) -> None:
        RESUMED.append(self._last)
        url = self._base.copy_with(
            path=f"{self._base.path}/{self._id}", query=f"stream=true&starting_after={self._last}".encode()
        )
        while True:
            try:
                reply = await self._inner.handle_async_request(httpx.Request("GET", url))
            except httpx.HTTPError:
                await asyncio.sleep(RETRY_S)
                continue
            if reply.status_code == 200:
                self._reply = reply
                return
            await reply.aclose()
            await asyncio.sleep(RETRY_S)

    async def aclose(self) -> None:
        await self._reply.aclose()


class ResumingTransport(httpx.AsyncBaseTransport):
    """Sends requests, and resumes the streams of responses."""

    def __init__(self) -> None:
        self._inner = httpx.AsyncHTTPTransport()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        reply = await self._inner.handle_async_request(request)
        if request.method != "POST" or "event-stream" not in reply.headers.get("content-type", ""):
            return reply
        return httpx.Response(
            reply.status_code, headers=reply.headers, stream=ResumedBody(self._inner, request.url, reply)
        )


async def main() -> None:
    """Runs an agent to its end."""
    tool = HostedMCPTool(
        tool_config={"type": "mcp", "server_label": TASK["label"], "require_approval": "never"},  # type: ignore[typeddict-item] # the server knows its URL
    )
    http_client = httpx.AsyncClient(transport=ResumingTransport(), timeout=None)
    async with AsyncOpenAI(base_url=TASK["url"], api_key="none", max_retries=0, http_client=http_client) as client:
        model = OpenAIResponsesModel("scripted", openai_client=client)
        settings = ModelSettings(extra_body={"background": True}) if TASK["background"] else ModelSettings()
        agent = Agent(name="A", model=model, tools=[tool], model_settings=settings)
        result = Runner.run_streamed(agent, TASK["prompt"])
        async for _ in result.stream_events():
            pass
    items = [item.raw_item.type for item in result.new_items]  # type: ignore[union-attr] # no item of this run is a dict
    print(json.dumps({"text": result.final_output, "items": items, "resumed": len(RESUMED)}))


asyncio.run(main())
