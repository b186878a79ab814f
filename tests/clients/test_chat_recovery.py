"""`kill -9` of the server while a stored chat completion with several choices runs: it ends as it would have."""

from pathlib import Path
from typing import Any

import openai
import pytest

from tests.clients.test_compaction_recovery import run_server
from tests.progress import wait_with_progress

TEXT = "".join(f"w{number} " for number in range(40))
SCRIPT: list[dict[str, Any]] = [
    {"name": "words", "output": [step for number in range(40) for step in ({"pause": 0.02}, f"w{number} ")]}
]


def test_stored_chat_ends_as_it_would_have(tmp_path: Path) -> None:
    messages: Any = [{"role": "user", "content": "Hi"}]
    with run_server(tmp_path, SCRIPT) as (client, process):
        fields: dict[str, Any] = {"model": "scripted", "messages": messages, "n": 3, "store": True}
        expected = client.chat.completions.create(**fields)
        stream = client.chat.completions.create(**fields, stream=True)
        chunks = [chunk for chunk, _ in zip(stream, range(20), strict=False)]
        process.kill()
        process.wait()
        stream.close()
    with run_server(tmp_path, SCRIPT) as (client, _):

        def is_found() -> bool:
            try:
                client.chat.completions.retrieve(chunks[0].id)
            except openai.NotFoundError:
                return False
            return True

        wait_with_progress(is_found, "the completion is stored")
        completion = client.chat.completions.retrieve(chunks[0].id)
    assert [choice.message.content for choice in completion.choices] == [TEXT] * 3
    assert [choice.finish_reason for choice in completion.choices] == ["stop"] * 3
    assert completion.usage is not None and expected.usage is not None
    assert completion.usage.total_tokens == expected.usage.total_tokens


@pytest.mark.parametrize("stream", [False, True])
def test_stored_chat_can_be_read(tmp_path: Path, *, stream: bool) -> None:
    """A completion that is shown after its commit is whole."""
    with run_server(tmp_path, SCRIPT) as (client, _):
        messages: Any = [{"role": "user", "content": "Hi"}]
        fields: dict[str, Any] = {"model": "scripted", "messages": messages, "store": True}
        if stream:
            chunks = list(client.chat.completions.create(**fields, stream=True))
            assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == TEXT
        else:
            assert client.chat.completions.create(**fields).choices[0].message.content == TEXT
