"""Pictures of jobs on remote engines: keys, tokens, spans, and the interfaces that take them."""

from antiphon.engine.media_messages import MediaSpan
from antiphon.engine.remote.backend_apis.base import BackendApi
from antiphon.engine.remote.backend_apis.llama_cpp import LlamaCppApi
from antiphon.engine.remote.backend_apis.sglang_generate import SglangGenerateApi
from antiphon.engine.remote.backend_apis.vllm_generate import VllmGenerateApi

PLACEHOLDER, START, END, BOS = 90, 91, 92, 1
MARKER = "<__media_f00__>"
KEY, OTHER_KEY = b"k" * 32, b"o" * 32
TOKENS = (40, PLACEHOLDER, 41, PLACEHOLDER)
APIS: dict[str, BackendApi] = {"vllm": VllmGenerateApi(), "sglang": SglangGenerateApi(), "llama.cpp": LlamaCppApi()}


def spans(*keys: bytes, rows: int = 0, length: int = 1) -> tuple[MediaSpan, ...]:
    return tuple(MediaSpan(key=key, offset=1 + 2 * index, length=length, rows=rows) for index, key in enumerate(keys))
