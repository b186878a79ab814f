"""Files and batches with LiteLLM. Argument: a task of `test_batch_clients.py`, which says what is printed."""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import litellm

litellm.suppress_debug_info = True
TASK = json.loads(sys.argv[1])
SERVER = {"custom_llm_provider": "openai", "api_base": TASK["url"], "api_key": TASK["key"], "max_retries": 0}
ENDPOINT = "/v1/responses"
EXPIRY = {"anchor": "created_at", "seconds": 3600}


def upload(name: str) -> Any:
    """Uploads a file of the task."""
    file = (f"{name}.jsonl", TASK["files"][name].encode())
    return litellm.create_file(file=file, purpose="batch", expires_after=EXPIRY, **SERVER)


def start(name: str) -> Any:
    """Starts a batch with a file of the task."""
    file_id, metadata = upload(name).id, {"name": name}
    fields = {"completion_window": "24h", "endpoint": ENDPOINT, "input_file_id": file_id, "metadata": metadata}
    return litellm.create_batch(**fields, **SERVER)


def wait_until(batch: Any, condition: Callable[[Any], bool]) -> Any:
    """Polls a batch until the condition is true."""
    while not condition(batch := litellm.retrieve_batch(batch_id=batch.id, **SERVER)):
        time.sleep(0.01)
    return batch


def wait_end(batch: Any) -> Any:
    """Polls a batch until it has ended."""
    return wait_until(batch, lambda each: each.status in ("completed", "failed", "expired", "cancelled"))


def read_text(file_id: str) -> str:
    """Returns the content of a file."""
    return litellm.file_content(file_id=file_id, **SERVER).content.decode()


def read_lines(file_id: str) -> list[Any]:
    """Returns the lines of a file."""
    return [json.loads(line) for line in read_text(file_id).splitlines()]


def read_status(attempt: Callable[[], object]) -> int | None:
    """Returns the HTTP status of the error that a call raises."""
    try:
        attempt()
    except Exception as error:  # noqa: BLE001 - its status is the result
        return getattr(error, "status_code", None)
    return None


def run_completed() -> dict[str, Any]:
    """Runs a batch with good and bad bodies."""
    begun = start("good")
    done = wait_end(begun)
    lines, errors = read_lines(done.output_file_id), read_lines(done.error_file_id)
    counts, tokens = done.request_counts, [line["response"]["body"]["usage"]["total_tokens"] for line in lines]
    return {
        "statuses": [begun.status, done.status],
        "counts": [counts.total, counts.completed, counts.failed],
        "usage_is_sum": done.usage.total_tokens == sum(tokens),
        "reasoning_tokens": dict(done.usage.output_tokens_details)["reasoning_tokens"],
        "metadata": done.metadata,
        "texts": [[line["custom_id"], line["response"]["body"]["output"][-1]["content"][0]["text"]] for line in lines],
        "errors": [
            [line["custom_id"], line["response"]["status_code"], line["response"]["body"]["error"]["code"]]
            for line in errors
        ],
    }


def run_failed() -> dict[str, Any]:
    """Runs a batch whose file is faulty."""
    faulty = wait_end(start("faulty"))
    return {"status": faulty.status, "errors": [[each.code, each.line] for each in faulty.errors.data]}


def run_cancelled() -> dict[str, Any]:
    """Cancels a batch after its first line."""
    endless = wait_until(start("endless"), lambda each: each.request_counts.completed == 1)
    refused = read_status(lambda: litellm.file_delete(file_id=endless.input_file_id, **SERVER))
    cancelling = litellm.cancel_batch(batch_id=endless.id, **SERVER)
    ended = wait_end(endless)
    return {
        "statuses": [endless.status, cancelling.status, ended.status],
        "deletion_of_input": refused,
        "done": [line["custom_id"] for line in read_lines(ended.output_file_id)],
        "errors": [[line["custom_id"], line["error"]["code"]] for line in read_lines(ended.error_file_id)],
    }


def main() -> None:
    """Prints what LiteLLM saw."""
    file = upload("good")
    results: dict[str, Any] = {
        "uploaded": [file.filename, file.bytes, file.purpose, file.status, file.expires_at - file.created_at],
        "same": litellm.file_retrieve(file_id=file.id, **SERVER).model_dump() == file.model_dump(),
        "content": read_text(file.id),
        "completed": run_completed(),
        "failed": run_failed(),
        "cancelled": run_cancelled(),
        "batches": [batch.metadata["name"] for batch in litellm.list_batches(limit=2, **SERVER)],
        "files": [each.filename for each in litellm.file_list(purpose="batch", **SERVER)],
        "deleted": [
            litellm.file_delete(file_id=file.id, **SERVER).deleted,
            read_status(lambda: litellm.file_retrieve(file_id=file.id, **SERVER)),
        ],
        "bad": read_status(
            lambda: litellm.create_batch(completion_window="24h", endpoint=ENDPOINT, input_file_id=file.id, **SERVER)
        ),
    }
    json.dump(results, sys.stdout)


main()
