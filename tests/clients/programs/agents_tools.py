"""The client tools of the OpenAI Agents SDK, which run commands and edit files in the current folder.

The program is run as `python PROGRAM TASK`. The task is a JSON object: `url`, `model`, `prompts` by name, and the
texts of `files`. A tool without a prompt is not run. It prints {tool: {run: {...}}}, where a run is one of `Runner.run`
and `Runner.run_streamed`, with and without storage.
"""

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agents import (
    Agent,
    ApplyPatchTool,
    LocalShellCommandRequest,
    LocalShellTool,
    ModelSettings,
    OpenAIResponsesModel,
    Runner,
    ShellTool,
    Tool,
    apply_diff,
    set_tracing_disabled,
)
from agents.editor import ApplyPatchOperation, ApplyPatchResult
from agents.tool import ShellCallOutcome, ShellCommandOutput, ShellCommandRequest, ShellResult
from openai import AsyncOpenAI

set_tracing_disabled(True)
TASK = json.loads(sys.argv[1])


def run_commands(request: ShellCommandRequest) -> ShellResult:
    """Runs the commands of a call."""
    return ShellResult(output=[run_command(command) for command in request.data.action.commands])


def run_command(command: str) -> ShellCommandOutput:
    """Runs a command in the current folder."""
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    outcome = ShellCallOutcome(type="exit", exit_code=done.returncode)
    return ShellCommandOutput(stdout=done.stdout, stderr=done.stderr, outcome=outcome, command=command)


def run_program(request: LocalShellCommandRequest) -> str:
    """Runs the program of a call of the tool `local_shell`. Returns what it prints."""
    return subprocess.run(request.data.action.command, capture_output=True, text=True, check=False).stdout


class FolderEditor:
    """An editor of the current folder."""

    def __init__(self) -> None:
        self.operations: list[list[str]] = []

    def create_file(self, operation: ApplyPatchOperation) -> ApplyPatchResult:
        """Creates the file."""
        return self._write(operation, apply_diff("", operation.diff or "", mode="create"))

    def update_file(self, operation: ApplyPatchOperation) -> ApplyPatchResult:
        """Applies the diff to the file."""
        return self._write(operation, apply_diff(Path(operation.path).read_text(), operation.diff or ""))

    def delete_file(self, operation: ApplyPatchOperation) -> ApplyPatchResult:
        """Deletes the file."""
        Path(operation.path).unlink()
        return self._describe(operation)

    def _write(self, operation: ApplyPatchOperation, text: str) -> ApplyPatchResult:
        Path(operation.path).write_text(text)
        return self._describe(operation)

    def _describe(self, operation: ApplyPatchOperation) -> ApplyPatchResult:
        self.operations.append([operation.type, operation.path])
        return ApplyPatchResult(output=f"edited {operation.path}")


async def run_agent(tool: Tool, prompt: str, *, stream: bool = False, **settings: Any) -> Any:
    """Runs an agent with one tool to its end."""
    async with AsyncOpenAI(base_url=TASK["url"], api_key="none", max_retries=0) as client:
        model = OpenAIResponsesModel(TASK["model"], openai_client=client)
        agent = Agent(name="A", model=model, tools=[tool], model_settings=ModelSettings(**settings))
        if not stream:
            return await Runner.run(agent, prompt)
        result = Runner.run_streamed(agent, prompt)
        async for _ in result.stream_events():
            pass
        return result


def describe_run(result: Any) -> dict[str, Any]:
    """Returns the calls, outputs and answer of a run."""
    items = [item.raw_item for item in result.new_items]
    raw = [item if isinstance(item, dict) else item.model_dump(mode="json", exclude_unset=True) for item in items]
    return {
        "calls": [item.get("action") or item["operation"] for item in raw if item["type"].endswith("_call")],
        "outputs": [item["output"] for item in raw if item["type"].endswith("_call_output")],
        "text": result.final_output,
    }


def run_shell(prompt: str, **options: Any) -> dict[str, Any]:
    """Runs an agent with a shell."""
    tool = LocalShellTool(executor=run_program) if prompt == "local_shell" else ShellTool(executor=run_commands)
    return describe_run(asyncio.run(run_agent(tool, TASK["prompts"][prompt], **options)))


def run_patch(files: dict[str, str], **options: Any) -> dict[str, Any]:
    """Runs an agent that edits files, and tells which there are then."""
    for path, text in files.items():
        Path(path).write_text(text)
    editor = FolderEditor()
    result = asyncio.run(run_agent(ApplyPatchTool(editor=editor), TASK["prompts"]["apply_patch"], **options))
    left = {path.name: path.read_text() for path in Path().iterdir() if path.is_file()}
    for name in left:
        Path(name).unlink()
    return describe_run(result) | {"operations": editor.operations, "files": left}


def describe_failure(run: Callable[[], object]) -> str:
    """Returns the class of the error that a run raises."""
    try:
        return f"no error: {run()}"
    except Exception as error:  # noqa: BLE001 - its class is the result
        return type(error).__name__


RUNS = {
    f"{'stream' if stream else 'run'}{'' if store is None else f', store {store}'}": {"stream": stream, "store": store}
    for stream in (False, True)
    for store in (None, True, False)
}
results = {"shell": {name: run_shell("shell", **options) for name, options in RUNS.items()}}
if "local_shell" in TASK["prompts"]:
    results["local_shell"] = {name: run_shell("local_shell", **options) for name, options in RUNS.items()}
if "apply_patch" in TASK["prompts"]:
    results["apply_patch"] = {name: run_patch(TASK["files"], **options) for name, options in RUNS.items()}
    results["hindered"] = {
        "one file a call": run_patch(TASK["files"], parallel_tool_calls=False),
        "without the files": run_patch({}, stream=True),
        "cut": describe_failure(lambda: run_shell("cut")),
        "cut stream": describe_failure(lambda: run_shell("cut", stream=True)),
    }
json.dump(results, sys.stdout)
