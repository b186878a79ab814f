"""Images in all places of requests, and their order for the model."""

import base64
import json
import random
import re
import struct
import zlib
from functools import partial
from typing import Any

import httpx
import pytest
from websockets.sync.client import connect

from tests.clients.media.image_requests import (
    BLUE,
    BLUE_TOKENS,
    GREEN,
    GREEN_TOKENS,
    RED,
    RED_TOKENS,
    Caller,
    RecordedJobs,
    call_items,
    chat_image,
    image_block,
    image_part,
    output_item,
    read_error,
    read_text,
    user,
)
from tests.clients.media.vision_model import (
    SAY_IMAGES,
    data_url,
    make_png,
    serve_vision,
)
from tests.progress import HANG_TIMEOUT_S
from tests.serving import RunningServer

CALL = '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'
TOOLS = [{"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}, "strict": True}]
COLOR = {
    "type": "object",
    "properties": {"color": {"type": "string"}},
    "required": ["color"],
    "additionalProperties": False,
}
SCRIPT: list[dict[str, Any]] = [
    {"name": "call", "when": ["Call it."], "output": [CALL]},
    {"name": "color", "when": ["as JSON"], "output": ['{"color": "red"}']},
    {"name": "endless", "when": ["Forever."], "output": [{"media": True}, {"stall": True}]},
    SAY_IMAGES,
]
SCREENSHOT_CALL = {
    "type": "computer_call", "call_id": "c", "id": "cu_1", "action": {"type": "screenshot"}, "status": "completed",
    "pending_safety_checks": [],
}  # fmt: skip


SERVER = partial(serve_vision, replies=SCRIPT)


@pytest.fixture
def caller(server: RunningServer) -> Caller:
    return Caller(server)


@pytest.fixture
def jobs(server: RunningServer) -> RecordedJobs:
    return RecordedJobs(server)


def count_loaded(caller: Caller) -> int:
    """Returns how many images the engine has asked for."""
    return int(caller.server.engine.stats().encoded_images)


def count_known(caller: Caller) -> dict[str, int]:
    """Returns how many images were prepared, and how many were known, so far."""
    text = httpx.get(f"{caller.server.root}/metrics", timeout=HANG_TIMEOUT_S).text
    found = re.findall(r'antiphon:media_total\{kind="image",result="(\w+)"\} (\d+)', text)
    return {result: int(count) for result, count in found}


def make_noise(width: int, height: int) -> bytes:
    """Returns a PNG of random pixels, which has about three bytes for each."""
    noise = random.Random(width)
    rows = b"".join(b"\0" + noise.randbytes(width * 3) for _ in range(height))
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)),
        (b"IDAT", zlib.compress(rows, 0)),
        (b"IEND", b""),
    )
    pieces = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(pieces)


def test_order_of_texts_and_images_is_kept(caller: Caller, jobs: RecordedJobs) -> None:
    cases: list[tuple[list[Any], str]] = [
        ([user(image_part(RED))], "user\n<4><|im_end|>"),
        ([user(image_part(RED), "x", image_part(BLUE))], "user\n<4>x<6><|im_end|>"),
        ([user(image_part(RED), image_part(RED), image_part(BLUE))], "user\n<4><4><6><|im_end|>"),
        ([user("\n", image_part(RED), "\n")], "user\n\n<4>\n<|im_end|>"),
        (
            [user("Hi"), *call_items("c"), output_item("c", "a", image_part(RED), "b", image_part(BLUE))],
            "<tool_response>\na<4>b<6>\n</tool_response>",
        ),
        (
            [
                user("Hi"),
                *call_items("one", "two"),
                output_item("two", "two", image_part(BLUE)),
                output_item("one", "one", image_part(RED)),
            ],
            "one<4>",
        ),
    ]
    for items, expected in cases:
        assert "image" in read_text(caller.respond(items))
        assert expected in jobs.prompt(), jobs.prompt()
        spans = jobs[-1].media
        ends = [span.offset + span.length for span in spans]
        assert all(end <= span.offset for end, span in zip(ends, spans[1:], strict=False)), "no two spans overlap"
    assert "two<6>" in jobs.prompt(), "each output has its own image"


def test_one_image_has_one_identity(caller: Caller, jobs: RecordedJobs) -> None:
    loaded, known = count_loaded(caller), count_known(caller)
    green = image_part(GREEN)
    call = caller.respond([user("Call it.", green)], tools=TOOLS).json()
    [item] = [item for item in call["output"] if item["type"] == "function_call"]
    more = {"previous_response_id": call["id"], "tools": TOOLS}
    seen = caller.respond([output_item(item["call_id"], "It is", green), user("So?")], **more)
    assert seen.status_code == 200, seen.text
    first, second = jobs[-1].media
    assert (first.key, first.rows) == (second.key, GREEN_TOKENS) and first.offset < second.offset
    assert count_loaded(caller) == loaded + 2, "each of the two jobs loaded it once"
    assert count_known(caller)["prepared"] == known.get("prepared", 0) + 1


def test_choices_share_the_image(caller: Caller, jobs: RecordedJobs) -> None:
    before = count_known(caller)
    yellow = make_noise(64, 96)
    reply = caller.chat({"role": "user", "content": [chat_image(yellow)]}, n=4)
    assert [choice["message"]["content"][:18] for choice in reply.json()["choices"]] == ["1 image: 6 tokens "] * 4
    assert len({job.media for job in jobs}) == 1 and len(jobs) == 4
    assert count_known(caller)["prepared"] == before.get("prepared", 0) + 1
    usage = reply.json()["usage"]
    assert usage["prompt_tokens"] == len(jobs[0].tokens), "the prompt counts once"


def test_screenshots_in_every_form(caller: Caller, jobs: RecordedJobs) -> None:
    file_id = caller.upload(BLUE)
    outputs: list[tuple[Any, list[int], str]] = [
        ({"type": "computer_screenshot", "image_url": data_url(RED)}, [RED_TOKENS], "<4>"),
        ({"type": "computer_screenshot", "image_url": data_url(RED), "detail": "original"}, [RED_TOKENS], "<4>"),
        ({"type": "computer_screenshot", "file_id": file_id}, [BLUE_TOKENS], "<6>"),
        ({"type": "input_image", "image_url": data_url(RED)}, [RED_TOKENS], "<4>"),
        ({"type": "computer_screenshot", "image_url": ""}, [], "[no screenshot]"),
    ]
    for output, images, text in outputs:
        items = [user("Look."), SCREENSHOT_CALL, {"type": "computer_call_output", "call_id": "c", "output": output}]
        reply = caller.respond(items)
        assert reply.status_code == 200, reply.text
        assert (jobs.images(), f"<tool_response>\n{text}\n" in jobs.prompt()) == (images, True), jobs.prompt()
        listed = caller.get(f"/responses/{reply.json()['id']}/input_items", order="asc").json()["data"][-1]["output"]
        assert listed.get("file_id") == output.get("file_id") and "blob:" not in str(listed)
        again = caller.respond("And?", previous_response_id=reply.json()["id"])
        assert read_text(again).startswith(f"{len(images)} image") and jobs.images() == images
    path = "input[0].output.image_url"
    broken = {
        "type": "computer_call_output",
        "call_id": "c",
        "output": {"type": "input_image", "image_url": data_url(b"x")},
    }
    assert read_error(caller.respond([broken]))["param"] == path


def test_chat_tools_and_custom_tools_return_images(caller: Caller, jobs: RecordedJobs) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "It is"}, chat_image(BLUE)]},
    ]
    assert read_text(caller.chat(*messages)).startswith("1 image: 6 tokens")
    assert "It is<6>" in jobs.prompt()
    items = [
        user("Look."),
        {"type": "custom_tool_call", "call_id": "c", "name": "draw", "input": "red"},
        {"type": "custom_tool_call_output", "call_id": "c", "output": user("drawn", image_part(RED))["content"]},
    ]
    assert read_text(caller.respond(items)).startswith("1 image: 4 tokens")
    assert "drawn<4>" in jobs.prompt()


def test_blocks_of_messages(caller: Caller, jobs: RecordedJobs) -> None:
    call = {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "look", "input": {}}]}
    for more in ({}, {"is_error": True}):
        result = {"type": "tool_result", "tool_use_id": "t", "content": [image_block(RED)], **more}
        reply = caller.message({"role": "user", "content": "Look."}, call, {"role": "user", "content": [result]})
        assert read_text(reply).startswith("1 image: 4 tokens")
        assert jobs.images() == [RED_TOKENS]
    content = [{"type": "text", "text": "before"}, image_block(BLUE)]
    document = {"type": "document", "title": "a", "source": {"type": "content", "content": content}}
    assert read_text(caller.message({"role": "user", "content": [document]})).startswith("1 image: 6 tokens")
    assert "before<6>" in jobs.prompt().replace("\n", "")
    wide = image_block(make_png(8001, 64))
    assert caller.message({"role": "user", "content": [wide]}).status_code == 400
    scaled = {**wide, "transformations": {"oversized_image": "downsize"}}
    assert read_text(caller.message({"role": "user", "content": [scaled]})).startswith("1 image: ")
    assert 0 < jobs.images()[0] <= 512
    refused = caller.message({"role": "user", "content": "Hi"}, system=[image_block(RED)])
    assert (refused.status_code, read_error(refused)["type"]) == (400, "invalid_request_error")


def test_malformed_images_are_refused_by_path(caller: Caller) -> None:
    url = data_url(RED)
    faults: list[tuple[dict[str, Any], str, str]] = [
        ({"image_url": {"url": url}}, "invalid_type", "image_url"),
        ({"image_url": url, "file_id": "file-a"}, "mutually_exclusive_parameters", ""),
        ({}, "missing_required_parameter", "image_url"),
        ({"image_url": url, "detail": "tiny"}, "invalid_value", "detail"),
    ]
    for fields, code, key in faults:
        error = read_error(caller.respond([user({"type": "input_image", **fields})]))
        path = "input[0].content[0]" + (f".{key}" if key else "")
        assert (error["code"], error["param"]) == (code, path), fields
    text = read_text(caller.chat({"role": "user", "content": [{"type": "image_url", "image_url": url}]}))
    assert text.startswith("1 image: 4 tokens"), "chat takes a URL in place of the object"
    image = image_part(RED)
    assert caller.respond([{"role": "assistant", "content": [image]}]).status_code == 400
    assert caller.respond("Hi", instructions=[user(image)]).status_code == 400


def test_constraints_and_images_go_together(caller: Caller, jobs: RecordedJobs) -> None:
    text = {"format": {"type": "json_schema", "name": "color", "schema": COLOR, "strict": True}}
    assert json.loads(read_text(caller.respond([user("as JSON", image_part(RED))], text=text))) == {"color": "red"}
    assert jobs[-1].grammar is not None and jobs.images() == [RED_TOKENS]
    reply = caller.respond([user("Call it.", image_part(BLUE))], tools=TOOLS, tool_choice="required")
    assert [item["type"] for item in reply.json()["output"]] == ["function_call"]
    assert jobs[-1].grammar is not None and jobs.images() == [BLUE_TOKENS]


def test_websocket_takes_an_image_over_one_mebibyte(server: RunningServer, jobs: RecordedJobs) -> None:
    picture = make_noise(672, 608)
    assert len(picture) > 1 << 20
    headers = {"authorization": "Bearer none", "openai-beta": "responses_websockets=2026-02-06"}
    url = server.url.replace("http", "ws") + "/responses"
    with connect(url, additional_headers=headers, max_size=None) as websocket:
        previous = None
        for items in ([user("What is it?", image_part(picture))], [user("And?")]):
            create = {"type": "response.create", "model": "vision", "input": items, "previous_response_id": previous}
            websocket.send(json.dumps(create))
            event: dict[str, Any] = {"type": ""}
            while event["type"] not in ("response.completed", "error"):
                event = json.loads(websocket.recv(timeout=HANG_TIMEOUT_S))
            assert event["type"] == "response.completed", event
            assert jobs.images() == [672 * 608 // 1024]
            previous = event["response"]["id"]


def test_background_response_with_an_image(caller: Caller) -> None:
    created = caller.respond([user(image_part(RED))], background=True, stream=True)
    events = [json.loads(line[6:]) for line in created.text.splitlines() if line.startswith("data: {")]
    assert events[-1]["type"] == "response.completed", events[-1]
    response = events[-1]["response"]
    for start in range(len(events) - 1):
        resumed = caller.get(f"/responses/{response['id']}", stream="true", starting_after=str(start))
        lines = [json.loads(line[6:]) for line in resumed.text.splitlines() if line.startswith("data: {")]
        assert lines == events[start + 1 :]
    running = caller.respond([user("Forever.", image_part(RED))], background=True).json()
    cancelled = caller.post(f"/responses/{running['id']}/cancel", {}).json()
    assert cancelled["status"] == "cancelled"
    refused = caller.respond([user(image_part(base64.b64decode("aGk=")))], background=True)
    assert refused.status_code == 400, "a fault that the headers show is an error, not a failed response"


def test_soft_tokens_of_clients_are_text(caller: Caller, jobs: RecordedJobs) -> None:
    marks = "<|vision_start|><|image_pad|><|vision_end|>[image]<|video_pad|>"
    assert read_text(caller.respond([user(marks, image_part(RED), marks)])).startswith("1 image: 4 tokens")
    [soft_id] = caller.server.engine.info.soft_ids
    assert jobs[-1].tokens.count(soft_id) == RED_TOKENS and jobs.prompt().count("<1>[image]<|video_pad|>") == 2
    completion = caller.post("/completions", {"model": "vision", "prompt": [65, soft_id, 66]})
    assert completion.status_code == 400 and "stands for a picture" in read_error(completion)["message"]
    biased = caller.respond("Hi", logit_bias={str(soft_id): 5})
    assert biased.status_code == 400 and "bias" in read_error(biased)["message"]
