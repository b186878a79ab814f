"""An agent of openai-agents with one tool."""

from dataclasses import dataclass

from agents import Agent, OpenAIResponsesModel, Runner, function_tool, set_tracing_disabled
from openai import AsyncOpenAI
from openai.types.responses import ResponseStreamEvent

set_tracing_disabled(True)

TEMPERATURES = {"Oslo": 4, "Lima": 19}


@function_tool
def get_temperature(city: str) -> str:
    """Returns the temperature in a city."""
    return f"{TEMPERATURES[city]} degrees" if city in TEMPERATURES else f"no station in {city}"


@dataclass
class WeatherReport:
    """The answer, and the events of all turns that led to it."""

    text: str
    events: list[ResponseStreamEvent]


async def report_weather(client: AsyncOpenAI, model: str, question: str) -> WeatherReport:
    """Answers a question about the weather."""
    agent = Agent(
        name="Weather desk",
        instructions="Answer in one sentence. Use the tool for temperatures.",
        model=OpenAIResponsesModel(model, openai_client=client),
        tools=[get_temperature],
    )
    result = Runner.run_streamed(agent, question)
    events = [event.data async for event in result.stream_events() if event.type == "raw_response_event"]
    return WeatherReport(str(result.final_output), events)
