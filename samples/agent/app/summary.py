"""An agent on the openai SDK alone: it streams a summary, and asks again if the stream breaks off."""

from collections.abc import Iterator

import httpx2
from events.progress import Failed, Finished, ProgressEvent, Started, TextReceived
from openai import APIError, OpenAI

MAX_ATTEMPTS = 3


class StreamCutError(Exception):
    """Raised for a stream that ended before its last event."""


def summarize(client: OpenAI, model: str, text: str) -> Iterator[ProgressEvent]:
    """Yields what happens, at last `Finished` or `Failed`. A stream that breaks off is asked for again."""
    for attempt in range(1, MAX_ATTEMPTS + 1):
        yield Started(attempt)
        try:
            yield from _read_summary(client, model, text)
        except (APIError, httpx2.TransportError, StreamCutError) as error:
            yield Failed(attempt, str(error))
        else:
            return


def _read_summary(client: OpenAI, model: str, text: str) -> Iterator[ProgressEvent]:
    stream = client.responses.create(model=model, input=f"Summarize: {text}", stream=True, store=False)
    for event in stream:
        if event.type == "response.output_text.delta":
            yield TextReceived(event.delta)
        elif event.type in ("response.completed", "response.incomplete"):
            yield Finished(event.response.output_text, is_complete=event.type == "response.completed")
            return
    raise StreamCutError("the stream ended before its last event")
