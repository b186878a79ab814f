"""A sandbox agent of the OpenAI Agents SDK with its default capabilities: files, a shell and compaction.

The program is run as `python PROGRAM TASK`. The task is a JSON object: `url`, `model`, `prompt` and the texts of `files`.
The sandbox is a local folder. It prints for each run the answer, the items, and the files at the end.
"""

import asyncio
import json
import sys
from typing import Any

from agents import OpenAIResponsesModel, RunConfig, Runner, set_tracing_disabled
from agents.sandbox import Manifest, SandboxAgent, SandboxRunConfig
from agents.sandbox.entries import File
from agents.sandbox.sandboxes.unix_local import UnixLocalSandboxClient
from openai import AsyncOpenAI

set_tracing_disabled(True)
TASK = json.loads(sys.argv[1])


async def run_agent(*, stream: bool, **options: Any) -> dict[str, Any]:
    """Runs the agent to its end, in a new folder."""
    sandbox = UnixLocalSandboxClient()
    entries = {path: File(content=text.encode()) for path, text in TASK["files"].items()}
    async with (
        AsyncOpenAI(base_url=TASK["url"], api_key="none", max_retries=0) as client,
        await sandbox.create(manifest=Manifest(entries=entries)) as session,
    ):
        model = OpenAIResponsesModel(TASK["model"], openai_client=client)
        agent = SandboxAgent(name="A", model=model)
        config = RunConfig(sandbox=SandboxRunConfig(session=session))
        if stream:
            result = Runner.run_streamed(agent, TASK["prompt"], run_config=config, **options)
            async for _ in result.stream_events():
                pass
        else:
            result = await Runner.run(agent, TASK["prompt"], run_config=config, **options)
        listed = await session.exec("cat", "c.txt", shell=False)
        raw = [item for response in result.raw_responses for item in response.output]
    await sandbox.delete(session)
    return {
        "text": result.final_output,
        "items": [[item.type, getattr(item, "name", None)] for item in raw],
        "file": listed.stdout.decode(),
        "capabilities": [capability.type for capability in agent.capabilities],
    }


RUNS: dict[str, dict[str, Any]] = {
    "run": {"stream": False},
    "stream": {"stream": True},
    "previous_response_id": {"stream": False, "auto_previous_response_id": True},
}
json.dump({name: asyncio.run(run_agent(**options)) for name, options in RUNS.items()}, sys.stdout)
