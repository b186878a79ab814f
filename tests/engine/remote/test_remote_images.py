"""Pictures on engines on other servers: what is sent, what the handshake believes, counts, faults and owners."""

import base64
import struct
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from antiphon.engine.fallbacks import Fallback
from antiphon.engine.media_messages import MediaArrays, MediaUnavailable
from antiphon.engine.protocol import Chunk, EngineError, EngineInfo, Job
from antiphon.engine.remote.backend_apis.llama_cpp import LlamaCppApi
from antiphon.engine.remote.backend_apis.vllm_generate import VllmGenerateApi
from antiphon.engine.remote.engine import RemoteEngine
from antiphon.engine.remote.images.image_handshake import ImageAbility, common_images
from antiphon.engine.remote.images.pictures import (
    ImageProbe,
    draw_probe_picture,
    is_expansion,
    load_pictures,
    name_picture,
)
from antiphon.engine.remote.options import RemoteOptions
from antiphon.engine.remote.transport.endpoint import RemoteEndpoint
from tests.engine.remote.fake_server import FakeServer, Reply, fake_server, json_reply, play_vllm, sse
from tests.engine.remote.image_spans import BOS, END, KEY, MARKER, OTHER_KEY, PLACEHOLDER, START, TOKENS, spans
from tests.engine.remote.remote_helpers import (
    EOS,
    FAST,
    check_rules,
    decode,
    encode,
    follow_grammars,
    load_model,
    make_job,
    merge_chunks,
)

PNG_START = b"\x89PNG"
PROBE = ImageProbe(
    tokens=(40, START, PLACEHOLDER, END, 41), offset=2, texts=("Look: ", "what?"), text_tokens=(40, 41, 42)
)


class PngSource:
    """Has the pictures `KEY` and `OTHER_KEY`."""

    secret = b"s"

    def __init__(self) -> None:
        self.loads: list[tuple[str, bytes]] = []

    async def load_arrays(self, job: Job, key: bytes) -> MediaArrays:
        raise AssertionError(key)

    async def load_png(self, job: Job, key: bytes) -> bytes:
        self.loads.append((job.owner, key))
        if key not in (KEY, OTHER_KEY):
            raise MediaUnavailable("the image is gone")
        return PNG_START + key[:1]


def test_names_of_pictures_differ_by_owner_salt_and_secret() -> None:
    jobs = [make_job(owner=owner, cache_salt=salt) for owner, salt in (("a", "b"), ("ab", ""), ("a", ""), ("", "ab"))]
    names = {name_picture(secret, job, key) for secret in (b"s", b"t") for job in jobs for key in (KEY, OTHER_KEY)}
    assert len(names) == 16 and all(len(name) == 64 for name in names)
    assert name_picture(b"s", jobs[0], KEY) == name_picture(b"s", make_job("x", owner="a", cache_salt="b"), KEY)


def test_picture_of_the_handshake_is_a_png() -> None:
    png = draw_probe_picture().png
    assert struct.unpack(">II", png[16:24]) == (32, 32)
    start = png.index(b"IDAT")
    size = struct.unpack(">I", png[start - 4 : start])[0]
    assert len(zlib.decompress(png[start + 4 : start + 4 + size])) == 32 * 97


@pytest.mark.parametrize(
    ("theirs", "is_ours"),
    [
        ([1, 9, 3], True),
        ([1, 9, 9, 9, 3], True),
        ([1, 7, 9, 8, 3], True),
        ([1, 9], False),
        ([2, 9, 3], False),
        ([1, 9, 4], False),
        ([1, 1, 9, 3, 3, 5], False),
        ([], False),
    ],
)
def test_expansion_keeps_the_rest_of_the_prompt(theirs: list[int], is_ours: bool) -> None:
    assert is_expansion((1, 9, 3), 1, theirs) == is_ours


async def test_each_picture_is_loaded_once() -> None:
    source = PngSource()
    pictures = await load_pictures(source, make_job(tokens=TOKENS, media=spans(KEY, KEY, OTHER_KEY)), b"s")
    assert [picture.png[-1:] for picture in pictures] == [b"k", b"k", b"o"] and len(source.loads) == 2
    assert base64.b64decode(pictures[0].base64_text) == pictures[0].png
    assert await load_pictures(None, make_job(), b"s") == ()


# Fake servers


def expand(tokens: list[int], count: int = 3) -> list[int]:
    """Returns a prompt with `count` tokens for each picture."""
    return [each for token in tokens for each in ([token] * count if token == PLACEHOLDER else [token])]


def play_generate(body: dict[str, Any], *, prompt: list[int] | None = None, told: bool = True) -> Reply:
    """Returns a reply of vLLM's generate interface to a job with pictures."""
    head = {"prompt_token_ids": expand(body["token_ids"]) if prompt is None else prompt}
    head |= {"mm_placeholders": {"image": [{"offset": 1, "length": 3}]}} if told else {}
    first = {"choices": [{"token_ids": [50], "finish_reason": None}]}
    last = {"choices": [{"token_ids": [EOS], "finish_reason": "stop"}]}
    usage = {"prompt_tokens": len(head["prompt_token_ids"]), "prompt_tokens_details": {"cached_tokens": 6}}
    return Reply(sse({**first, **head}, last, {"choices": [], "usage": usage}))


def vllm_with_images(body: dict[str, Any]) -> Reply | None:
    return play_generate(body) if "content_parts" in body else follow_grammars(body)


def sglang_with_images(body: dict[str, Any]) -> Reply | None:
    if "prompt" in body:  # completions
        return follow_grammars(body)
    count = len(expand(body["input_ids"])) if "image_data" in body else len(body["input_ids"])
    meta = {"prompt_tokens": count, "completion_tokens": 1, "cached_tokens": 0, "finish_reason": {"type": "stop"}}
    return Reply(sse({"output_ids": [EOS], "meta_info": meta}))


def llama_with_images(body: dict[str, Any], num_added: int = 1) -> Reply:
    if body.get("grammar") or "n_probs" in body:
        return json_reply({"error": {"code": 400, "message": "no"}}, 400)
    prompt = body["prompt"]
    count = len(prompt)
    if isinstance(prompt, dict):
        assert prompt["prompt_string"].count(MARKER) == len(prompt["multimodal_data"])
        count = num_added + len(PROBE.text_tokens) + 5 * len(prompt["multimodal_data"])
    end = {"tokens": [], "stop": True, "stop_type": "eos", "timings": {"cache_n": 0}, "tokens_evaluated": count}
    return Reply(sse({"tokens": [EOS], "stop": False}, end, end=False))


@asynccontextmanager
async def image_engine(
    kind: str = "vllm",
    probes: Any = vllm_with_images,
    *,
    details: dict[str, Any] | None = None,
    model: dict[str, Any] | None = None,
    **options: Any,
) -> AsyncIterator[tuple[RemoteEngine, FakeServer, PngSource]]:
    """Yields a started engine over one server, and the source of its pictures."""
    async with fake_server(encode, play_vllm(50, EOS), probes) as server:
        server.decode, server.answer_job = decode, lambda body: probes(body) or server.default
        server.owned_by = "llamacpp" if kind == "llama.cpp" else "tensorrt_llm" if kind == "trtllm" else kind
        server.text_field = {"llama.cpp": "content", "sglang": "text"}.get(kind, "prompt")
        server.version, server.details = "0.32.0", details or {}
        here, info = load_model()
        fields: dict[str, Any] = {
            "image_probe": PROBE,
            "model_type": "qwen3_vl",
            "vocab_size": 100_000,
            **(model or {}),
        }
        options = {"grammar": "off", **options}
        engine = RemoteEngine(
            RemoteOptions(endpoints=(RemoteEndpoint(host="127.0.0.1", port=server.port),), **options),
            msgspec.structs.replace(here, **fields),
            msgspec.structs.replace(info, vocab_size=100_000),
            timeouts=FAST,
        )
        source = PngSource()
        engine.attach_media(source)
        await engine.start()
        try:
            yield engine, server, source
        finally:
            await engine.close()


async def run(engine: RemoteEngine, **fields: Any) -> list[Chunk]:
    chunks: list[Chunk] = []
    await engine.generate(make_job(**{"tokens": TOKENS, "media": spans(KEY, OTHER_KEY), **fields}), chunks.append)
    check_rules(chunks)
    return chunks


async def fail(engine: RemoteEngine, **fields: Any) -> EngineError:
    with pytest.raises(EngineError) as caught:
        await run(engine, **fields)
    return caught.value


async def test_vllm_takes_pictures_and_tells_the_length_of_the_prompt() -> None:
    async with image_engine(separate_owners=True) as (engine, server, source):
        assert (engine.info.image_form, engine.info.image_refusal) == ("placeholder", "")
        chunks = await run(engine, owner="me")
        assert merge_chunks(chunks) == (50, EOS)
        assert max(chunk.prompt_tokens for chunk in chunks) == 8 and max(chunk.cached_tokens for chunk in chunks) == 6
        job = server.jobs[-1]
        assert job.path == "/inference/v1/generate" and job.body["token_ids"] == list(TOKENS)
        parts = job.body["content_parts"]
        assert [part["url"] for part in parts] == [
            f"data:image/png;base64,{base64.b64encode(PNG_START + letter).decode()}" for letter in (b"k", b"o")
        ]
        assert parts[0]["uuid"] == name_picture(b"s", make_job(owner="me"), KEY)
        assert source.loads == [("me", KEY), ("me", OTHER_KEY)]
        await run(engine, media=(), owner="me")
        assert server.jobs[-1].path == "/v1/completions", "a job without pictures goes as before"


async def test_known_rows_leave_room_for_the_output() -> None:
    async with image_engine() as (engine, server, _):
        await run(engine, media=spans(KEY, OTHER_KEY, rows=1000))
        assert server.jobs[-1].body["sampling_params"]["max_tokens"] == 4096 - 4 - 2 * 999
        error = await fail(engine, media=spans(KEY, rows=5000))
        assert error.code == "context_length_exceeded" and "5003 tokens" in error.message


async def test_sglang_takes_pictures() -> None:
    async with image_engine("sglang", sglang_with_images) as (engine, server, _):
        assert engine.info.image_form == "placeholder"
        chunks = await run(engine)
        assert max(chunk.prompt_tokens for chunk in chunks) == 8
        body = server.jobs[-1].body
        assert server.jobs[-1].path == "/generate" and len(body["image_data"]) == len(body["mm_hashes"]) == 2


LLAMA_DETAILS = {"modalities": {"vision": True}, "media_marker": MARKER}


@pytest.mark.parametrize("num_added", [0, 1])
async def test_llama_cpp_takes_pictures_between_texts(num_added: int) -> None:
    """The server may put the token that begins a text before the prompt; then ours is left out."""

    def answer(body: dict[str, Any]) -> Reply:
        return llama_with_images(body, num_added)

    added = {BOS: "<s>"}
    async with image_engine("llama.cpp", answer, details=LLAMA_DETAILS, model={"added_tokens": added}) as (
        engine, server, _,
    ):  # fmt: skip
        assert engine.info.image_form == "text"
        chunks = await run(engine, tokens=(BOS, 40), texts=("<s>See ", "", " now"), media=spans(KEY, KEY, length=0))
        assert max(chunk.prompt_tokens for chunk in chunks) == num_added + 13
        start = "" if num_added else "<s>"
        assert server.jobs[-1].body["prompt"]["prompt_string"] == f"{start}See {MARKER}{MARKER} now"
        error = await fail(engine, texts=(f"a{MARKER}", "b"), media=spans(KEY, length=0))
        assert error.code == "invalid_request" and not error.retryable and MARKER not in error.message


def refusing(body: dict[str, Any]) -> Reply | None:
    if "content_parts" in body or "image_data" in body:
        return json_reply({"error": {"message": "cannot read at <PIL object at 0x7f00>", "code": 400}}, 400)
    return sglang_with_images(body) if "input_ids" in body else follow_grammars(body)


def changed(**fields: Any) -> Any:
    """Returns a vLLM whose reply to pictures differs."""
    return lambda body: play_generate(body, **fields) if "content_parts" in body else follow_grammars(body)


@pytest.mark.parametrize(
    ("kind", "probes", "setting", "reason"),
    [
        ("vllm", follow_grammars, {}, "does not tell the prompt"),
        ("vllm", changed(told=False), {}, "does not tell the prompt"),
        ("vllm", changed(prompt=[40, START, 1, 2, 3, END, 99]), {}, "another prompt than ours"),
        ("vllm", refusing, {}, "it does not read a test image (cannot read"),
        ("vllm", vllm_with_images, {"surface": "completions"}, "/v1/completions takes no images"),
        ("vllm", vllm_with_images, {"model": {"image_probe": ImageProbe()}}, "writes no placeholder"),
        ("sglang", refusing, {}, "it does not read a test image"),
        ("sglang", sglang_with_images, {"model": {"model_type": "gemma3"}}, "makes text of the token ids of gemma3"),
        ("llama.cpp", llama_with_images, {"details": {"modalities": {"vision": False}}}, "without a vision tower"),
        ("llama.cpp", llama_with_images, {"details": {"modalities": {"vision": True}}}, "without a vision tower"),
        ("llama.cpp", lambda body: llama_with_images(body, 4), {"details": LLAMA_DETAILS}, "another prompt than ours"),
        ("trtllm", vllm_with_images, {}, "TensorRT-LLM takes no images"),
    ],
)
async def test_pictures_are_off_with_one_line(
    kind: str, probes: Any, setting: dict[str, Any], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with image_engine(kind, probes, **setting) as (engine, server, source):
        info = engine.info
        assert info.image_form == "none" and reason in info.image_refusal and "\n" not in info.image_refusal
        lines = [record.getMessage() for record in caplog.records if "takes no images" in record.getMessage()]
        assert len(lines) == 1 and reason in lines[0]
        assert info.fallbacks == (Fallback("pictures", info.image_refusal),)
        error = await fail(engine)
        assert error.code == "invalid_request" and reason in error.message
        assert not server.jobs and not source.loads


def test_engines_that_differ_in_pictures_are_told() -> None:
    takes, refuses = ImageAbility(api=VllmGenerateApi()), ImageAbility(refusal="too old")
    text, blind = ImageAbility(api=LlamaCppApi()), ImageAbility()
    assert common_images([takes, takes]) == {"image_form": "placeholder", "image_refusal": "", "fallbacks": ()}
    for abilities, reason in (
        ([takes, refuses], "too old"),
        ([takes, text], "in different forms"),
        ([takes, blind], "only some of them"),
    ):
        fields = common_images(abilities)
        assert fields["image_form"] == "none" and reason in fields["image_refusal"]
        assert fields["fallbacks"] == (Fallback("pictures", fields["image_refusal"]),)
    assert common_images([blind, blind]) == {"image_form": "none", "image_refusal": "", "fallbacks": ()}


async def test_model_without_vision_is_not_probed() -> None:
    async with image_engine(model={"image_probe": None}) as (engine, server, _):
        assert (engine.info.image_form, engine.info.image_refusal, engine.info.fallbacks) == ("none", "", ())
        assert not any("content_parts" in (request.body or {}) for request in server.requests)


async def test_refused_picture_does_not_quote_the_server() -> None:
    async with image_engine() as (engine, server, _):
        server.answer_job = refuse_image
        error = await fail(engine)
        assert (error.code, error.retryable) == ("media_refused", False) and "0x7f00" not in error.message
        assert len(server.jobs) == 1, "no other replica would read it"


async def test_number_of_pictures_that_a_server_takes() -> None:
    async with image_engine() as (engine, server, _):
        message = "At most 8 image(s) may be provided in one prompt."
        server.answer_job = lambda _: json_reply({"error": {"message": message, "code": 400}}, 400)
        error = await fail(engine)
        assert (error.code, error.message) == ("invalid_request", "the engine takes at most 8 images in a prompt")


async def test_salt_has_no_characters_that_vllm_refuses() -> None:
    async with image_engine(separate_owners=True) as (engine, server, _):
        for number in range(20):
            await run(engine, owner=f"owner {number}")
        salts = [job.body["cache_salt"] for job in server.jobs]
        assert len(set(salts)) == 20 and not {"/", "@", "\\"} & set("".join(salts))


def refuse_image(body: dict[str, Any]) -> Reply:
    return json_reply({"error": {"message": "cannot identify image file <at 0x7f00>", "code": 400}}, 400)


async def test_picture_that_is_gone_is_a_retryable_error() -> None:
    async with image_engine() as (engine, server, _):
        error = await fail(engine, media=spans(b"x" * 32))
        assert (error.code, error.message, error.retryable) == ("media_unavailable", "the image is gone", True)
        assert not server.jobs


async def test_prompt_logprobs_beside_pictures_are_refused() -> None:
    async with image_engine() as (engine, _, _):
        error = await fail(engine, prompt_logprobs=1)
        assert error.code == "invalid_request" and "prompt_logprobs" in error.message


async def test_wild_counts_of_a_server_are_not_believed() -> None:
    async with image_engine() as (engine, server, _):
        server.answer_job = lambda body: play_generate(body, prompt=[1] * 5000)
        chunks = await run(engine)
        assert max(chunk.prompt_tokens for chunk in chunks) == 0


async def test_tokens_of_pictures_outside_of_pictures_are_refused() -> None:
    async with image_engine() as (engine, server, _):
        engine._base_info = engine._info = msgspec.structs.replace(engine.info, soft_ids=(PLACEHOLDER,))
        await run(engine)
        for fields in ({"media": ()}, {"media": spans(KEY)}, {"logit_bias": {PLACEHOLDER: 1.0}}):
            error = await fail(engine, **fields)
            assert error.code == "invalid_request" and "stands for a picture" in error.message
        assert len(server.jobs) == 1
        await run(engine, logit_bias={PLACEHOLDER: -100.0})
        assert len(server.jobs) == 2


def test_info_is_unchanged_without_pictures() -> None:
    assert EngineInfo(max_model_len=1, vocab_size=1).image_form == "none"
