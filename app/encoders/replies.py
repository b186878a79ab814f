"""Bodies of the replies of embedding and reranking models.

A body may have millions of numbers, so it is written input by input, and other tasks run in between.
"""

import asyncio
import base64
import struct
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from antiphon.app.encoders.jobs import EncoderResult

VECTORS_PER_TURN = 16
"""Number of vectors to write before other tasks of the event loop run."""


async def embeddings_body(result: EncoderResult, model: str, *, as_base64: bool) -> bytes:
    """Returns OpenAI's list of embeddings."""
    entries: list[bytes] = []
    for index, vector in enumerate(result.vectors):
        numbers = base64.b64encode(vector).decode() if as_base64 else decode_vector(vector)
        entries.append(msgspec.json.encode({"object": "embedding", "index": index, "embedding": numbers}))
        if index % VECTORS_PER_TURN == VECTORS_PER_TURN - 1:
            await asyncio.sleep(0)
    tail = msgspec.json.encode({"model": model, "usage": _usage(result)})
    return b'{"object":"list","data":[' + b",".join(entries) + b"]," + tail[1:]


def rerank_body(
    result: EncoderResult, model: str, request_id: str, texts: Sequence[str] | None, top_n: int
) -> dict[str, Any]:
    """Returns the documents in the order of their scores, at most `top_n` of them; `texts` are added if given."""
    scores = [decode_vector(vector)[0] for vector in result.vectors]
    order = sorted(range(len(scores)), key=lambda index: -scores[index])
    results: list[dict[str, Any]] = []
    for index in order[: top_n or None]:
        document = {} if texts is None else {"document": {"text": texts[index]}}
        results.append({"index": index, "relevance_score": scores[index], **document})
    return {"id": f"rerank-{request_id}", "model": model, "usage": _usage(result), "results": results}


def score_body(result: EncoderResult, model: str, request_id: str) -> dict[str, Any]:
    """Returns vLLM's list of scores."""
    scores = [decode_vector(vector)[0] for vector in result.vectors]
    data = [{"index": index, "object": "score", "score": score} for index, score in enumerate(scores)]
    head = {"id": f"score-{request_id}", "object": "list", "created": int(time.time()), "model": model}
    return {**head, "data": data, "usage": _usage(result)}


def decode_vector(vector: bytes) -> list[float]:
    """Returns the numbers of a vector of little-endian float32."""
    return list(struct.unpack(f"<{len(vector) // 4}f", vector))


def _usage(result: EncoderResult) -> dict[str, int]:
    return {"prompt_tokens": result.num_tokens, "total_tokens": result.num_tokens}
