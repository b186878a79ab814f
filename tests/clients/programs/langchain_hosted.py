"""LangChain's ChatOpenAI with tools that the server runs, over two turns.

The program is run as `python PROGRAM TASK`. The task is a JSON object: `url`, `model`, `label` and `prompt`. It prints
{run: {...}}. In the second turn, a run sends the first one's items again, or names the first response.
"""

import json
import sys
from functools import reduce
from operator import add
from typing import Any

from langchain_core.messages import HumanMessage
from langchain_openai import ChatOpenAI

TASK = json.loads(sys.argv[1])
TOOL = {"type": "mcp", "server_label": TASK["label"], "require_approval": "never"}


def run_turns(*, stream: bool, **options: Any) -> dict[str, Any]:
    """Runs two turns. Returns the types of the first one's content, and both texts."""
    model = ChatOpenAI(
        model=TASK["model"], base_url=TASK["url"], api_key="none", max_retries=0, use_responses_api=True, **options
    )
    bound: Any = model.bind_tools([TOOL])
    messages: list[Any] = [HumanMessage(TASK["prompt"])]
    texts = []
    for _ in range(2):
        reply = reduce(add, bound.stream(messages)) if stream else bound.invoke(messages)
        texts.append(reply.text)
        messages += [reply, HumanMessage("Say it again.")]
    return {"items": [block["type"] for block in messages[1].content], "texts": texts}


RUNS = {
    "resent": {"use_previous_response_id": False},
    "resent, not stored": {"use_previous_response_id": False, "store": False},
    "named": {"use_previous_response_id": True},
}
results = {
    f"{'stream' if stream else 'run'}, {name}": run_turns(stream=stream, **options)
    for stream in (False, True)
    for name, options in RUNS.items()
}
json.dump(results, sys.stdout)
