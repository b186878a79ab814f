"""LangChain's ChatOpenAI and ChatAnthropic with images, and with screenshots in both forms that ChatOpenAI sends.

The program is run as `python PROGRAM TASK`, with the task of `agents_images.py`. It prints {run: {"text", "again"}}: the
answer, and that of a second turn with all messages of the first.
"""

import json
import sys
from functools import reduce
from operator import add
from typing import Any

from langchain_anthropic import ChatAnthropic
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

TASK = json.loads(sys.argv[1])
IMAGE = {"type": "image", "base64": TASK["image"].partition(",")[2], "mime_type": "image/png"}
IMAGE_URL = {"type": "image_url", "image_url": {"url": TASK["image"]}}
PDF = {"type": "file", "base64": TASK["pdf"].partition(",")[2], "mime_type": "application/pdf"}


@tool
def look() -> str:
    """Returns what there is to see."""
    return ""


def open_openai(**options: Any) -> Any:
    return ChatOpenAI(model=TASK["model"], api_key="none", max_retries=0, base_url=TASK["url"], **options)


def ask(model: Any, *contents: Any, stream: bool = False) -> dict[str, Any]:
    """Asks with messages, calls the tool if the model wants it, and asks once more."""
    messages: list[BaseMessage] = [
        HumanMessage(content) if isinstance(content, list | str) else content for content in contents
    ]
    texts = []
    for _ in range(2):
        answer = reduce(add, model.stream(messages)) if stream else model.invoke(messages)
        while answer.tool_calls:
            outputs = [ToolMessage([IMAGE_URL], tool_call_id=call["id"]) for call in answer.tool_calls]
            messages += [answer, *outputs]
            answer = model.invoke(messages)
        messages += [answer, HumanMessage("And now?")]
        texts.append(answer.text)
    return {"text": texts[0], "again": texts[1]}


def ask_computer(content: Any) -> dict[str, Any]:
    """Sends a screenshot as the output of a call that the model is said to have made."""
    call = {
        "type": "computer_call", "id": "cu_1", "call_id": "c", "status": "completed", "pending_safety_checks": [],
        "action": {"type": "screenshot"},
    }  # fmt: skip
    kwargs = {"type": "computer_call_output"}
    output = ToolMessage(content, tool_call_id="c", additional_kwargs=kwargs)
    return ask(open_openai(use_responses_api=True), "Look at the screen.", AIMessage([call]), output)


def open_anthropic() -> Any:
    root = TASK["url"].removesuffix("/v1")
    return ChatAnthropic(model=TASK["model"], api_key="none", max_retries=0, base_url=root, max_tokens=99)


RUNS: dict[str, Any] = {
    "responses, image": lambda: ask(open_openai(use_responses_api=True), [IMAGE]),
    "responses, image_url, stream, store False": lambda: ask(
        open_openai(use_responses_api=True, store=False), [IMAGE_URL], stream=True
    ),
    "responses, pdf": lambda: ask(open_openai(use_responses_api=True), [PDF]),
    "responses, tool": lambda: ask(open_openai(use_responses_api=True).bind_tools([look]), "Look."),
    "chat, image": lambda: ask(open_openai(use_responses_api=False), [IMAGE]),
    "chat, pdf": lambda: ask(open_openai(use_responses_api=False), [PDF]),
    "computer, text": lambda: ask_computer(TASK["image"]),
    "computer, part": lambda: ask_computer([{"type": "input_image", "image_url": TASK["image"]}]),
    "anthropic, image": lambda: ask(open_anthropic(), [IMAGE]),
    "anthropic, pdf": lambda: ask(open_anthropic(), [PDF]),
}


def describe_run(run: Any) -> dict[str, Any]:
    """Returns what a run answered, or the class and the message of its error."""
    try:
        return dict(run())
    except Exception as error:  # noqa: BLE001 - the test reports it
        return {"failure": f"{type(error).__name__}: {error}"[:600]}


json.dump({name: describe_run(run) for name, run in RUNS.items()}, sys.stdout)
