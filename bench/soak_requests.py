"""The requests of the soak test: valid and abusive ones, each with the outcome that the summary counts."""

import asyncio
import gzip
import json
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress

import httpx
from websockets.asyncio.client import ClientConnection, connect

SCRIPT = """
[[reply]]
name = "steered"
when = ["Enough"]
output = ["As you say."]
[[reply]]
name = "silent"
when = ["Be silent"]
output = [{ stall = true }]
[[reply]]
name = "stall"
when = ["Forever"]
output = ["On and on", { stall = true }]
[[reply]]
name = "any"
output = ["<think>\\nA thought.\\n</think>\\n\\n", "Word by word, this is what is said to everybody. "]
tokens_per_chunk = 2
"""
ABUSE_SHARE = 0.05
"""Share of abusive requests."""
BOMB_BYTES = 40 * 2**20


class SoakRequests:
    """Requests to the server at `url`, by one client or many."""

    def __init__(self, url: str, client: httpx.AsyncClient, rng: random.Random) -> None:
        self.url, self.client, self.rng = url, client, rng

    def choose(self) -> Callable[[], Awaitable[str]]:
        """Returns a random request, a function that returns its outcome."""
        valid: list[Callable[[], Awaitable[str]]] = [
            self.create_response, self.stream_response, self.stream_response, self.stream_chat, self.resume_background,
            self.cancel_background, self.use_conversation, self.use_websocket, self.steer_lanes, self.run_batch,
        ]  # fmt: skip
        abusive = [
            self.send_invalid_json, self.disconnect, self.send_bomb, self.send_incomplete_header, self.send_binary,
            self.break_lanes, self.break_upload, self.leave_compaction,
        ]  # fmt: skip
        return self.rng.choice(abusive if self.rng.random() < ABUSE_SHARE else valid)

    async def _post(self, path: str, **body: object) -> httpx.Response:
        return await self.client.post(self.url + path, json={"model": "scripted", **body})

    # Valid requests. Each returns its outcome.

    async def create_response(self) -> str:
        return f"response {(await self._post('/responses', input='Hi')).status_code}"

    async def stream_response(self) -> str:
        reply = await self._post("/responses", input="Hi " * self.rng.randint(1, 400), stream=True)
        return (
            f"stream {reply.status_code} {'complete' if reply.text.endswith('[DONE]' + chr(10) * 2) else 'TRUNCATED'}"
        )

    async def stream_chat(self) -> str:
        messages = [{"role": "user", "content": "Hi"}]
        return f"chat {(await self._post('/chat/completions', messages=messages, stream=True)).status_code}"

    async def resume_background(self) -> str:
        """Reads a background response twice: from the start, and from a random event. Then deletes it."""
        response = (await self._post("/responses", input="Hi", background=True)).json()
        url = f"{self.url}/responses/{response['id']}"
        events = (await self.client.get(f"{url}?stream=true")).text.split("\n\n")
        number = self.rng.randrange(len(events) - 2)
        resumed = (await self.client.get(f"{url}?stream=true&starting_after={number}")).text.split("\n\n")
        await self.client.delete(url)
        return "background same" if resumed == events[number + 1 :] else "background DIFFERENT"

    async def cancel_background(self) -> str:
        response = (await self._post("/responses", input="Forever", background=True)).json()
        reply = await self.client.post(f"{self.url}/responses/{response['id']}/cancel")
        return f"cancel {reply.json()['status']}"

    async def use_conversation(self) -> str:
        conversation = (await self.client.post(f"{self.url}/conversations", json={})).json()["id"]
        for _ in range(3):
            reply = await self._post("/responses", input="Go on", conversation=conversation)
        await self.client.delete(f"{self.url}/conversations/{conversation}")
        return f"conversation {reply.status_code}"

    async def use_websocket(self) -> str:
        async with connect(self.url.replace("http", "ws") + "/responses") as websocket:
            for _ in range(3):
                await websocket.send(json.dumps({"type": "response.create", "model": "scripted", "input": "Hi"}))
                while (event_type := json.loads(await websocket.recv())["type"]) != "response.completed":
                    assert event_type != "error"
        return "websocket 200"

    async def steer_lanes(self) -> str:
        """Steers responses that say nothing, each in a lane, and reads their successors."""
        async with connect(self.url.replace("http", "ws") + "/responses") as websocket:
            for number in range(8):
                await _create_in_lane(websocket, number, "Be silent")
            num_completed = 0
            while num_completed < 8:
                event = json.loads(await websocket.recv())
                num_completed += event["type"] == "response.completed"
                if event["type"] == "response.in_progress" and event["response"]["previous_response_id"] is None:
                    target = event["response"]["id"]
                    steer = {"type": "response.steer", "previous_response_id": target, "input": "Enough"}
                    await websocket.send(json.dumps(steer))
                assert event["type"] not in ("error", "response.failed", "response.steer.failed")
        return "steered lanes 8"

    async def run_batch(self) -> str:
        """Runs a batch of five lines, reads its output, and deletes its files."""
        line = {"method": "POST", "url": "/v1/responses", "body": {"model": "scripted", "input": "Hi"}}
        content = "\n".join(json.dumps({**line, "custom_id": str(number)}) for number in range(5))
        upload = await self.client.post(
            f"{self.url}/files", files={"file": ("in.jsonl", content.encode())}, data={"purpose": "batch"}
        )
        if upload.status_code != 200:
            return f"upload {upload.status_code} {upload.text}"
        body = {"input_file_id": upload.json()["id"], "endpoint": "/v1/responses", "completion_window": "24h"}
        batch = (await self.client.post(f"{self.url}/batches", json=body)).json()
        while batch.get("status") != "completed":
            if "error" in batch:
                return f"batch {batch}"
            await asyncio.sleep(0.1)
            batch = (await self.client.get(f"{self.url}/batches/{batch['id']}")).json()
        output = (await self.client.get(f"{self.url}/files/{batch['output_file_id']}/content")).text
        for file_id in (upload.json()["id"], batch["output_file_id"]):
            await self.client.delete(f"{self.url}/files/{file_id}")
        return f"batch {len(output.splitlines())}"

    # Abusive requests

    async def break_upload(self) -> str:
        """Breaks a connection off in the middle of an upload."""
        _, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(self.url).port)
        head = f"POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Length: {100 << 20}\r\n"
        form = '--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
        writer.write(f"{head}Content-Type: multipart/form-data; boundary=x\r\n\r\n{form}".encode())
        writer.write(bytes(self.rng.randrange(3 << 20)))
        await writer.drain()
        writer.transport.abort()
        return "broken upload"

    async def leave_compaction(self) -> str:
        """Disconnects from a response while it is compacted: the summary never ends."""
        compaction = [{"type": "compaction", "compact_threshold": 1000}]
        body = {"model": "scripted", "input": "Forever " * 500, "stream": True, "context_management": compaction}
        async with self.client.stream("POST", f"{self.url}/responses", json=body) as reply:
            async for piece in reply.aiter_bytes():
                if b"compaction" in piece:
                    return "left compaction"
        return f"compaction ended {reply.status_code}"

    async def break_lanes(self) -> str:
        """Breaks a connection off while its lanes stall or wait, and a steer is on its way."""
        websocket = await connect(self.url.replace("http", "ws") + "/responses")
        for number in range(self.rng.randint(1, 40)):
            await _create_in_lane(websocket, number % 20, "Forever")
        event = json.loads(await websocket.recv())
        steer = {"type": "response.steer", "previous_response_id": event["response"]["id"], "input": "Forever"}
        await websocket.send(json.dumps(steer))
        websocket.transport.abort()
        return "broken lanes"

    async def send_invalid_json(self) -> str:
        reply = await self.client.post(
            f"{self.url}/responses", content=b"{", headers={"content-type": "application/json"}
        )
        return f"invalid JSON {reply.status_code}"

    async def disconnect(self) -> str:
        body = {"model": "scripted", "input": "Forever", "stream": True}
        async with self.client.stream("POST", f"{self.url}/responses", json=body) as reply:
            async for _ in reply.aiter_bytes():
                break
        return "disconnected"

    async def send_bomb(self) -> str:
        headers = {"content-type": "application/json", "content-encoding": "gzip"}
        reply = await self.client.post(
            f"{self.url}/responses", content=gzip.compress(bytes(BOMB_BYTES)), headers=headers
        )
        return f"bomb {reply.status_code}"

    async def send_incomplete_header(self) -> str:
        _, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(self.url).port)
        writer.write(b"POST /v1/responses HTTP/1.1\r\nHost: localhost\r\nX: ")
        await asyncio.sleep(0.5)
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
        return "incomplete header"

    async def send_binary(self) -> str:
        async with connect(self.url.replace("http", "ws") + "/responses") as websocket:
            await websocket.send(b"\x00")
            return f"binary frame {json.loads(await websocket.recv())['status']}"


async def _create_in_lane(websocket: ClientConnection, number: int, text: str) -> None:
    create = {"type": "response.create", "model": "scripted", "stream_id": f"lane-{number}", "input": text}
    await websocket.send(json.dumps(create))
