"""The OpenAI Agents SDK with images: in a message, out of a tool, of an uploaded file, and from a computer.

The program is run as `python PROGRAM TASK`. The task is a JSON object: `url`, `model`, `image` as data URL and `file_id`.
It prints {run: {"text": answer, "sent": types of the parts that the tool returned}}.
"""

import asyncio
import json
import sys
from typing import Any

from agents import (
    Agent,
    AsyncComputer,
    ComputerTool,
    ModelSettings,
    OpenAIResponsesModel,
    Runner,
    ToolOutputImage,
    ToolOutputText,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI

set_tracing_disabled(True)
TASK = json.loads(sys.argv[1])


@function_tool
def look() -> list[ToolOutputText | ToolOutputImage]:
    """Returns what there is to see."""
    return [ToolOutputText(text="It is"), ToolOutputImage(image_url=TASK["image"], detail="high")]


@function_tool
def look_at_file() -> ToolOutputImage:
    """Returns an uploaded picture."""
    return ToolOutputImage(file_id=TASK["file_id"])


class Screen(AsyncComputer):
    """A computer that shows one picture."""

    environment = "browser"
    dimensions = (64, 64)

    async def screenshot(self) -> str:
        """Returns the picture in base64."""
        return str(TASK["image"]).partition(",")[2]

    async def click(self, x: int, y: int, button: Any) -> None:
        """Does nothing, as all that follow."""

    async def double_click(self, x: int, y: int) -> None: ...

    async def scroll(self, x: int, y: int, scroll_x: int, scroll_y: int) -> None: ...

    async def type(self, text: str) -> None: ...

    async def wait(self) -> None: ...

    async def move(self, x: int, y: int) -> None: ...

    async def keypress(self, keys: list[str]) -> None: ...

    async def drag(self, path: list[tuple[int, int]]) -> None: ...


async def run_agent(prompt: Any, *tools: Any, stream: bool = False, **settings: Any) -> dict[str, Any]:
    """Runs an agent to its end, and then one turn more with all of its items."""
    async with AsyncOpenAI(base_url=TASK["url"], api_key="none", max_retries=0) as client:
        model = OpenAIResponsesModel(TASK["model"], openai_client=client)
        agent = Agent(name="A", model=model, tools=list(tools), model_settings=ModelSettings(**settings))
        if stream:
            result = Runner.run_streamed(agent, prompt)
            async for _ in result.stream_events():
                pass
        else:
            result = await Runner.run(agent, prompt)
        again = await Runner.run(agent, [*result.to_input_list(), {"role": "user", "content": "And now?"}])
        return {"text": result.final_output, "again": again.final_output}


def message(*parts: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns an input of one message."""
    return [{"role": "user", "content": list(parts)}]


SHOT = {"type": "computer_screenshot", "image_url": TASK["image"]}
COMPUTER_ITEMS = [
    {"role": "user", "content": "Look at the screen."},
    {"type": "computer_call", "id": "cu_1", "call_id": "c", "status": "completed", "pending_safety_checks": [],
     "action": {"type": "screenshot"}},
    {"type": "computer_call_output", "call_id": "c", "output": SHOT, "acknowledged_safety_checks": []},
]  # fmt: skip
RUNS: dict[str, Any] = {
    "message": lambda: run_agent(message({"type": "input_image", "image_url": TASK["image"], "detail": "auto"})),
    "tool": lambda: run_agent("Look.", look),
    "tool, stream, store False": lambda: run_agent("Look.", look, stream=True, store=False),
    "tool, file": lambda: run_agent("Look.", look_at_file),
    "computer items": lambda: run_agent(COMPUTER_ITEMS),
    "computer": lambda: run_agent(message({"type": "input_text", "text": "See."}), ComputerTool(computer=Screen())),
}


def describe_run(run: Any) -> dict[str, Any]:
    """Returns what a run answered, or the class and the message of its error."""
    try:
        return dict(asyncio.run(run()))
    except Exception as error:  # noqa: BLE001 - the test reports it
        return {"failure": f"{type(error).__name__}: {error}"[:600]}


json.dump({name: describe_run(run) for name, run in RUNS.items()}, sys.stdout)
