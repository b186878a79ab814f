"""The options of several models: their names, what belongs to which, and what is refused because it is unclear."""

import math
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from antiphon.app.cli.commands import main
from antiphon.app.cli.options import parse_duration
from antiphon.app.models.options import split_models
from antiphon.app.options.serve_options import ModelOption, ServeError, ServeOptions
from antiphon.engine.options import EngineOptions, LoraModule

TWO = ("coder=org/a", "org/b")


def split(*models: str, **options: Any) -> list[ServeOptions]:
    engine = EngineOptions(**options.pop("engine_options", {}))
    return split_models(ServeOptions(models=models, engine_options=engine, **options))


def test_a_name_may_precede_each_model(tmp_path: Path) -> None:
    folder = tmp_path / "x=y"
    folder.mkdir()
    models = split("coder=org/a", "org/b", str(folder), "c=./here")
    assert [(model.name, model.model) for model in models] == [
        ("coder", "org/a"),
        ("", "org/b"),
        ("", str(folder)),
        ("c", "./here"),
    ]


def test_without_a_model_the_embedded_one_is_served() -> None:
    (model,) = split(served_model_names=("a", "b"))
    assert (model.model, model.served_model_names) == (None, ("a", "b"))


def test_additional_names_belong_to_the_only_model_or_to_each_in_order() -> None:
    assert split("org/a", served_model_names=("a", "b"))[0].served_model_names == ("a", "b")
    assert [model.served_model_names for model in split(*TWO, served_model_names=("a", "b"))] == [("a",), ("b",)]


def test_options_of_one_model_change_no_other() -> None:
    given = (
        ModelOption("coder", "quantization", "int4"),
        ModelOption("org/b", "dialect", "hermes"),
        ModelOption("short", "idle_unload_s", 60.0),
    )
    first, second = split(
        *TWO, served_model_names=("x", "short"), model_options=given, engine_options={"threads": 2}, idle_unload_s=5.0
    )
    assert (first.engine_options.quantization, first.engine_options.threads) == ("int4", 2)
    assert (first.dialect, first.idle_unload_s) == (None, 5.0)
    assert (second.engine_options.quantization, second.engine_options.threads) == (None, 2)
    assert (second.dialect, second.idle_unload_s) == ("hermes", 60.0)


def test_each_adapter_belongs_to_one_model() -> None:
    adapters = (LoraModule("coder:sql", "/a"), LoraModule("org/b:chat:v2", "/b"))
    first, second = split(*TWO, engine_options={"lora_modules": adapters})
    assert first.engine_options.lora_modules == (LoraModule("sql", "/a"),)
    assert second.engine_options.lora_modules == (LoraModule("chat:v2", "/b"),)
    (only,) = split("org/a", engine_options={"lora_modules": (LoraModule("sql:v2", "/a"),)})
    assert only.engine_options.lora_modules == (LoraModule("sql:v2", "/a"),)


@pytest.mark.parametrize(
    ("models", "options", "reason"),
    [
        (TWO, {"engine": "scripted"}, "--engine scripted serves one model"),
        (TWO, {"engine": "vllm"}, "--engine vllm serves one model"),
        (TWO, {"record": Path("r")}, "--record records one model"),
        (TWO, {"dialect": "hermes"}, "write --model-option MODEL:dialect=…"),
        (TWO, {"chat_template": Path("t")}, "write --model-option MODEL:chat-template=…"),
        (TWO, {"revision": "v1"}, "write --model-option MODEL:revision=…"),
        (TWO, {"served_model_names": ("a",)}, "2 models have 1 --served-model-name"),
        (TWO, {"served_model_names": ("a", "b", "c")}, "2 models have 3 --served-model-name"),
        (TWO, {"engine_options": {"lora_modules": (LoraModule("sql", "/a"),)}}, "--lora sql=…: write MODEL:NAME=PATH"),
        (TWO, {"model_options": (ModelOption("c", "dialect", "hermes"),)}, "use one of coder, org/a, org/b"),
        (("org/a", "org/a"), {"model_options": (ModelOption("org/a", "threads", 1),)}, "no single model has this name"),
        (("=org/a",), {}, "write NAME=PATH_OR_HUB_ID"),
        (("a=",), {}, "write NAME=PATH_OR_HUB_ID"),
    ],
)
def test_unclear_options_are_refused(models: tuple[str, ...], options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ServeError, match=reason.replace("(", r"\(")):
        split(*models, **options)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--model-option", "a"], "write MODEL:OPTION=VALUE"),
        (["--model-option", "threads=1"], "write MODEL:OPTION=VALUE"),
        (["--model-option", "a:port=1"], "'port' is no option of one model; choose from dialect"),
        (["--model-option", "a:threads=x"], "'x' is not a valid integer"),
        (["--idle-unload", "0"], "'0' is not a duration"),
        (["--idle-unload", "15 minutes"], "'15 minutes' is not a duration"),
        (["--memory-gib", "0"], "0.0 is not in the range x>0"),
    ],
)
def test_unreadable_values_are_refused(arguments: list[str], reason: str) -> None:
    result = CliRunner().invoke(main, ["serve", *arguments])
    assert result.exit_code == 2 and reason in result.output


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("1.5s", 1.5), ("2m", 120), ("1 h", 3600), ("1d", 86_400), ("never", math.inf)]
)
def test_durations_have_units(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds
