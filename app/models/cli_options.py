"""Options of `antiphon serve` for the models: names, the type of weights, and when each is loaded and unloaded."""

import math
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import click

from antiphon.app.models.options import PER_MODEL_OPTIONS
from antiphon.app.option_types import ServeOption
from antiphon.app.serve_options import ModelOption

serve_option = partial(click.option, cls=ServeOption)
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(s|m|h|d)?")
_UNIT_SECONDS = {None: 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}


class DurationType(click.ParamType[float]):
    """A duration above 0, such as 90s, 15m or 2h, or `never`. A number without a unit is in seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Returns the duration in seconds; infinity for `never`."""
        if value == "never":
            return math.inf
        match = _DURATION.fullmatch(str(value).strip())
        seconds = float(match[1]) * _UNIT_SECONDS[match[2]] if match else 0.0
        if seconds <= 0:
            self.fail(
                f"{value!r} is not a duration: write a number and s, m, h or d, such as 15m, or never", param, ctx
            )
        return seconds


class ModelOptionType(click.ParamType[ModelOption]):
    """An option of one model, as MODEL:OPTION=VALUE. The value is read as that option reads it."""

    name = "model:option=value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> ModelOption:
        """Returns the option with its converted value."""
        if isinstance(value, ModelOption):
            return value
        left, _, text = str(value).partition("=")
        model, _, key = left.rpartition(":")
        if not (model and key and text):
            self.fail(f"{value!r}: write MODEL:OPTION=VALUE, such as coder:quantization=int4", param, ctx)
        field = PER_MODEL_OPTIONS.get(key.removeprefix("--").replace("_", "-"))
        if field is None:
            self.fail(f"{key!r} is no option of one model; choose from {', '.join(PER_MODEL_OPTIONS)}", param, ctx)
        assert ctx is not None  # options are converted in a command only
        option = next(each for each in ctx.command.params if each.name == field)
        return ModelOption(model, field, option.type.convert(text, option, ctx))


OPTIONS = (
    serve_option(
        "--served-model-name",
        "served_model_names",
        multiple=True,
        help="Additional model name; repeatable. With several models, one for each, in order.",
    ),
    serve_option(
        "--model-option",
        "model_options",
        multiple=True,
        type=ModelOptionType(),
        help="Option of one of several models, such as coder:quantization=int4; repeatable.",
    ),
    serve_option(
        "--dtype",
        type=click.Choice(["float32"]),
        help="Type to compute with: float32 dequantizes a quantized checkpoint, and takes 4 bytes for each weight. "
        "Default: as the weights are stored.",
    ),
    serve_option(
        "--load-on-demand", is_flag=True, help="Load each model at its first use. Default: all models at the start."
    ),
    serve_option(
        "--idle-unload",
        "idle_unload_s",
        type=DurationType(),
        help="Unload a model that was not used for this time, such as 15m; its next request loads it again.",
    ),
    serve_option(
        "--memory-gib",
        type=click.FloatRange(0, min_open=True),
        help="Memory in GiB for all loaded models together. A model that does not fit takes the place of the least "
        "recently used ones. Default: no limit.",
    ),
    serve_option(
        "--load-timeout",
        "load_timeout_s",
        type=click.FloatRange(0, min_open=True),
        default=600.0,
        show_default=True,
        help="Seconds that a request waits for its model to be loaded.",
    ),
    serve_option(
        "--embedding-model",
        "embedding_models",
        multiple=True,
        help="Folder or hub id of a model to serve on /v1/embeddings, too; repeatable.",
    ),
    serve_option(
        "--rerank-model",
        "rerank_models",
        multiple=True,
        help="Folder or hub id of a model to serve on /v1/rerank and /v1/score, too; repeatable.",
    ),
)


def add_model_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the options to a command, in order."""
    for option in reversed(OPTIONS):
        command = option(command)
    return command
