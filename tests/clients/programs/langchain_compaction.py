"""LangChain's ChatOpenAI reads files one after the other while the server compacts its conversation.

The program is run as `python PROGRAM TASK`, with the task of `agents_compaction.py`. It prints for each run the answers,
the paths that were read, and the number of compactions in the messages.
"""

import json
import sys
from functools import reduce
from operator import add
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

TASK = json.loads(sys.argv[1])
MANAGEMENT = [{"type": "compaction", "compact_threshold": TASK["threshold"]}]


@tool
def read_file(path: str) -> str:
    """Returns the text of a file."""
    return TASK["files"][path]


def ask_until_answered(model: Any, messages: list[BaseMessage], *, stream: bool) -> AIMessage:
    """Appends the model's messages and the tool's to `messages`. Returns the answer."""
    while True:
        answer = reduce(add, model.stream(messages)) if stream else model.invoke(messages)
        messages.append(answer)
        if not answer.tool_calls:
            return answer
        messages += [ToolMessage(read_file.invoke(call["args"]), tool_call_id=call["id"]) for call in answer.tool_calls]


def read_files(*, stream: bool, **options: Any) -> dict[str, Any]:
    """Runs the tool for the prompt, and then asks the follow-up."""
    model = ChatOpenAI(
        model=TASK["model"],
        api_key="none",
        max_retries=0,
        base_url=TASK["url"],
        use_responses_api=True,
        context_management=MANAGEMENT,
        **options,
    ).bind_tools([read_file])
    messages: list[BaseMessage] = [HumanMessage(TASK["prompt"])]
    text = ask_until_answered(model, messages, stream=stream).text
    messages.append(HumanMessage(TASK["follow_up"]))
    again = ask_until_answered(model, messages, stream=stream).text
    answers = [message for message in messages if isinstance(message, AIMessage)]
    blocks = [block for message in answers for block in message.content if isinstance(block, dict)]
    return {
        "text": text,
        "again": again,
        "paths": [call["args"]["path"] for message in answers for call in message.tool_calls],
        "compactions": sum(block["type"] == "compaction" for block in blocks),
    }


RUNS: dict[str, dict[str, Any]] = {
    "run": {"stream": False},
    "stream, store False": {"stream": True, "store": False},
    "stream, previous_response_id": {"stream": True, "use_previous_response_id": True},
}
json.dump({name: read_files(**RUNS[name]) for name in TASK["runs"]}, sys.stdout)
