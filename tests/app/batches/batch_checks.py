"""Input files of batches, and what must hold for a batch that has ended, whoever was killed meanwhile."""

import json
import random
from typing import Any

from msgspec import Struct

from antiphon.app.store.batches.records import ENDED_BATCH_STATUSES
from tests.app.batches.batch_cluster import BatchCluster
from tests.progress import HANG_TIMEOUT_S

LARGE_BODY_BYTES = 200 << 10
LARGE_REPLY_CHARS = 32_000
"""Characters of instructions, which a response repeats."""
USAGE_NAMES = ("input_tokens", "output_tokens", "total_tokens")


class BatchInput(Struct, kw_only=True):
    """An input file and what the test has done to its batch."""

    custom_ids: list[str]
    bad_ids: set[str]
    content: bytes
    file_id: str = ""
    is_cancelled: bool = False
    is_expired: bool = False


def make_input(
    dice: random.Random, num_lines: int, *, large_bodies: int = 0, large_replies: bool = False
) -> BatchInput:
    """Makes an input of which some lines have bodies that are refused, and some are large."""
    large = set(dice.sample(range(num_lines), min(large_bodies, num_lines)))
    prefix, lines = f"{dice.getrandbits(40):010x}", list[bytes]()
    built = BatchInput(custom_ids=[f"{prefix}-{number}" for number in range(num_lines)], bad_ids=set(), content=b"")
    for number, custom_id in enumerate(built.custom_ids):
        body: dict[str, Any] = {"model": "scripted", "input": f"line {number}", "metadata": {"line": custom_id}}
        body["store"] = dice.random() < 0.3
        if large_replies:
            body["instructions"] = "x" * LARGE_REPLY_CHARS
        if dice.random() < 0.1:
            body.update(dice.choice(({"input": 7}, {"stream": True}, {"model": "unknown"})))
            built.bad_ids.add(custom_id)
        line = {"custom_id": custom_id, "method": "POST", "url": "/v1/responses", "body": body}
        padding = b" " * (LARGE_BODY_BYTES if number in large else 0)
        lines.append(json.dumps(line).encode().removesuffix(b"}}") + padding + b"}}" + b"\n" * dice.choice((1, 1, 2)))
    built.content = b"".join(lines)
    return built


async def check_input_in_use(cluster: BatchCluster, batch_input: BatchInput, batch_id: str) -> None:
    """Asserts that the input file of a batch that runs cannot be deleted."""
    reply = await cluster.client.delete(f"{cluster.servers[-1].url}/files/{batch_input.file_id}")
    if reply.status_code != 409:
        status = (await cluster.get_json(f"/batches/{batch_id}"))["status"]
        assert reply.status_code == 200 and status in ENDED_BATCH_STATUSES, (reply.text, status)


async def check_ended(cluster: BatchCluster, batch: dict[str, Any], batch_input: BatchInput) -> int:
    """Asserts that a batch that has ended has each line once, in order, and counts it. Returns the number of lines."""
    expected = ["completed"] + ["cancelled"] * batch_input.is_cancelled + ["expired"] * batch_input.is_expired
    assert batch["status"] in expected and batch["errors"] is None, batch
    output = await _load_lines(cluster, batch["output_file_id"])
    errors = await _load_lines(cluster, batch["error_file_id"])
    order = {custom_id: number for number, custom_id in enumerate(batch_input.custom_ids)}
    for lines in (output, errors):
        numbers = [order[line["custom_id"]] for line in lines]
        assert numbers == sorted(numbers), f"{batch['id']}: not in the order of the input"
    found = sorted(line["custom_id"] for line in (*output, *errors))
    assert found == sorted(batch_input.custom_ids), f"{batch['id']}: lines are missing or twice there"
    assert len({line["id"] for line in (*output, *errors)}) == len(found)
    for line in output:
        body = line["response"]["body"]
        assert line["response"]["status_code"] == 200 and body["metadata"] == {"line": line["custom_id"]}
        assert body["status"] == "completed" and line["error"] is None
    refused = [line for line in errors if line["response"] is not None]
    unrun = {line["error"]["code"] for line in errors if line["response"] is None}
    assert unrun <= {f"batch_{batch['status']}"} and (unrun or batch["status"] != "expired"), unrun
    assert {line["custom_id"] for line in refused} <= batch_input.bad_ids, refused
    assert not {line["custom_id"] for line in output} & batch_input.bad_ids
    assert all(400 <= line["response"]["status_code"] < 500 for line in refused), refused
    counts = {"total": len(found), "completed": len(output), "failed": len(refused)}
    assert batch["request_counts"] == counts, f"{batch['id']}: {batch['request_counts']} are not {counts}"
    usage = {name: sum(line["response"]["body"]["usage"][name] for line in output) for name in USAGE_NAMES}
    assert {name: batch["usage"][name] for name in USAGE_NAMES} == usage, batch["id"]
    return len(found)


async def check_inputs_can_be_deleted(cluster: BatchCluster, file_id: str) -> None:
    """Deletes an input file that no batch reads any more."""
    url = f"{cluster.servers[-1].url}/files/{file_id}"
    reply = await cluster.client.delete(url)
    assert reply.status_code in {200, 404}, reply.text  # 404: `check_input_in_use` came after the end
    assert (await cluster.client.get(url)).status_code == 404


async def _load_lines(cluster: BatchCluster, file_id: str | None) -> list[dict[str, Any]]:
    """Returns the lines of an output file; none if there is no file."""
    if file_id is None:
        return []
    file = await cluster.get_json(f"/files/{file_id}")
    url = f"{cluster.servers[-1].url}/files/{file_id}/content"
    content = (await cluster.client.get(url, timeout=HANG_TIMEOUT_S)).content
    assert file["bytes"] == len(content) > 0 and content.endswith(b"\n"), file
    return [json.loads(line) for line in content.splitlines()]
