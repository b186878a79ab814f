"""Models that call several tools in one reply, and their conversations."""

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from antiphon.events.inputs import (
    AnyInput,
    InputFunctionCall,
    InputFunctionOutput,
    InputMessage,
)
from antiphon.events.tools import FunctionTool
from antiphon.harmony.detection.detect import load_format
from antiphon.harmony.format import ModelFormat
from antiphon.harmony.tools import ToolTable
from tests.harmony.template_models import TEMPLATE_MODELS, TemplateModel

QUESTION = InputMessage(role="user", content="How is the weather in the two cities?")
ANSWER = InputMessage(role="assistant", content="Rainy in both.")
TOOLS = ToolTable.from_request(
    [
        FunctionTool(
            name="find_weather",
            description="Finds the weather.",
            parameters={
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
                "required": ["city"],
            },
        )
    ]
)
CALL_ITEMS: tuple[AnyInput, ...] = (
    InputFunctionCall(call_id="call_8f3a90c1", name="find_weather", arguments='{"city": "Oslo", "days": 2}'),
    InputFunctionCall(call_id="call_77ab02de", name="find_weather", arguments='{"city": "Bergen", "days": 3}'),
)
OUTPUT_ITEMS: tuple[AnyInput, ...] = (
    InputFunctionOutput(call_id="call_8f3a90c1", output="sleet until noon"),
    InputFunctionOutput(call_id="call_77ab02de", output="drizzle all day"),
)
EACH_CALLING_MODEL = pytest.mark.parametrize(
    "model", [model for model in TEMPLATE_MODELS if model.output], ids=lambda model: model.name
)


@cache
def load_model(model: TemplateModel) -> ModelFormat:
    with TemporaryDirectory() as folder:
        return load_format(model.write_folder(Path(folder))).format
