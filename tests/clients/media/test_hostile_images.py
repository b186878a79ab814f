"""Hostile images in requests of all three APIs, beside eight streams that continue: exact errors, and memory that is given back."""

import json
import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

import httpx
import pytest
from PIL import Image

from antiphon.app.requests.media.errors import INVALID_IMAGE
from tests.app.media.hostile_pictures import FAULTS
from tests.app.media.pictures import make_png
from tests.clients.media.hostile_server import WORDS, SeparateServer, run_server
from tests.clients.media.image_requests import (
    RED,
    RED_TOKENS,
    Caller,
    chat_image,
    image_block,
    image_part,
    read_error,
    read_text,
    user,
)
from tests.counts import FULL_COUNTS
from tests.progress import HANG_TIMEOUT_S

NUM_STREAMS = 8
MAX_GROWTH_BYTES = 32 << 20
RELEASE_TIMEOUT_S = 10.0
"""Memory of large requests is given back half a second after their end, on a machine that is not busy."""
APIS = ("responses", "chat", "messages")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[SeparateServer]:
    """A server that has read its first images, so that its libraries are loaded."""
    with run_server(folder) as running:
        check_red(running)
        read_stream(running)
        yield running


def send(server: SeparateServer, api: str, *pictures: bytes) -> httpx.Response:
    """Sends pictures in a message of a user."""
    caller = Caller(server)  # type: ignore[arg-type]  # only the URL is used
    if api == "responses":
        return caller.respond([user("Look:", *(image_part(data) for data in pictures))])
    parts = [chat_image(data) if api == "chat" else image_block(data) for data in pictures]
    message = {"role": "user", "content": [{"type": "text", "text": "Look:"}, *parts]}
    return caller.chat(message) if api == "chat" else caller.message(message)


@contextmanager
def run_streams(server: SeparateServer) -> Iterator[list[str]]:
    """Runs eight streams over and over beside the block. Yields the texts of those that have ended."""
    texts: list[str] = []
    stopped = threading.Event()

    def run() -> None:
        while not stopped.is_set():
            texts.append(read_stream(server))

    with ThreadPoolExecutor(NUM_STREAMS) as pool:
        streams = [pool.submit(run) for _ in range(NUM_STREAMS)]
        try:
            yield texts
        finally:
            stopped.set()
    for stream in streams:
        stream.result()


def read_stream(server: SeparateServer) -> str:
    """Returns the text of a stream that no image has a part in."""
    body = {"model": "vision", "input": "Tell a tale.", "stream": True, "store": False}
    with httpx.stream("POST", f"{server.url}/responses", json=body, timeout=HANG_TIMEOUT_S) as reply:
        events = [json.loads(line[6:]) for line in reply.iter_lines() if line.startswith("data: {")]
    assert events[-1]["type"] == "response.completed", events[-1]
    return "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")


def check_released(server: SeparateServer, max_bytes: int) -> None:
    """Checks that the server has no more than this, once it had the time to give back what requests took."""
    deadline = time.monotonic() + RELEASE_TIMEOUT_S
    while server.read_bytes() >= max_bytes and time.monotonic() < deadline:
        time.sleep(0.1)
    assert server.read_bytes() < max_bytes


def make_costly_jpeg() -> bytes:
    """Returns a picture of 40 KB that takes many seconds to decode: of 9 million pixels, in 1 000 scans."""
    file = BytesIO()
    Image.new("RGB", (3_000, 3_000), (9, 200, 90)).save(file, "JPEG", progressive=True)
    data = file.getvalue()
    last = data.rindex(b"\xff\xda")
    return data[:-2] + data[last:-2] * 1_000 + data[-2:]


def check_red(server: SeparateServer) -> None:
    for api in APIS:
        assert read_text(send(server, api, RED)).startswith(f"1 image: {RED_TOKENS} tokens")


@pytest.mark.timeout(900 if FULL_COUNTS else 240)
def test_hostile_images_beside_streams(server: SeparateServer) -> None:
    before = server.read_bytes()
    with run_streams(server) as texts:
        for index, (name, (make, _code)) in enumerate(FAULTS.items()):
            data = make()
            for api in APIS if FULL_COUNTS else APIS[index % 3 :][:1]:
                check_refusal(api, name, send(server, api, data))
        costly = read_error(send(server, "responses", make_costly_jpeg()))
        assert (costly["code"], costly["message"]) == ("image_parse_error", INVALID_IMAGE)
        check_red(server)
    assert len(texts) >= NUM_STREAMS and set(texts) == {"".join(WORDS)}
    check_released(server, before + MAX_GROWTH_BYTES)


def check_refusal(api: str, name: str, reply: httpx.Response) -> None:
    assert reply.status_code == 400, (name, reply.text)
    error = read_error(reply)
    assert not re.search(r"\b0x[0-9a-f]{6}|Traceback", error["message"])
    if api == "messages":
        assert error["type"] == "invalid_request_error" and error["message"].startswith("messages.0.content.1.image")
    elif api == "responses" and name != "no bytes":
        assert error["message"].startswith(INVALID_IMAGE.rstrip(".")[:60]), error


def test_ten_thousand_images_are_refused(server: SeparateServer) -> None:
    before = server.read_bytes()
    for api in APIS:
        error = read_error(send(server, api, *[make_png(1, 1)] * 10_000))
        assert error["message"].endswith(": 101 images, at most 100 are allowed."), "counting ends at the limit"
    check_released(server, before + MAX_GROWTH_BYTES)


@pytest.mark.timeout(900 if FULL_COUNTS else 240)
def test_a_hundred_large_images(server: SeparateServer) -> None:
    """Each has 16 million pixels, 48 MB decoded: they are decoded one at a time, outside of the server."""
    count = 100 if FULL_COUNTS else 2
    pictures = [make_png(4_000, 4_000, bytes([number, 90, 200]) * 16_000_000) for number in range(count)]
    before = server.read_bytes()
    counts = read_text(send(server, "responses", *pictures)).removeprefix(f"{count} images: ").split(", ")
    assert len(counts) == count and len(set(counts)) == 1
    # The responses are stored, and the memory that a large request leaves does not grow with the next ones.
    check_released(server, before + MAX_GROWTH_BYTES + 3 * sum(map(len, pictures)))
