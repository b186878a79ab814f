"""The shipped weights: what they are, and that they still do what the README says, asked a little of everything."""

import json
from typing import Any

import pytest

from antiphon.engine.embedded import MODEL_DIR, chat, evaluate, generator, tokenizer
from antiphon.engine.embedded.chat import user_message
from antiphon.engine.options import EngineOptions
from tests.counts import FULL_COUNTS


@pytest.fixture(scope="module")
def shipped() -> Any:
    return evaluate.load_model(MODEL_DIR)


def test_the_model_is_small_and_of_qwen3(shipped: Any) -> None:
    model, _ = shipped
    assert model.config.model_type == "qwen3" and model.config.tie_word_embeddings
    assert 2e6 < sum(p.numel() for p in model.parameters()) < 6e6
    assert (MODEL_DIR / "model.safetensors").stat().st_size < 7e6
    assert json.loads((MODEL_DIR / "config.json").read_text(encoding="utf-8"))["dtype"] == "bfloat16"


@pytest.mark.skipif(not FULL_COUNTS, reason="it is learned anew: `make test-full`")
def test_the_shipped_tokenizer_is_that_of_the_source() -> None:
    shipped = json.loads((MODEL_DIR / "tokenizer.json").read_text(encoding="utf-8"))
    assert shipped["model"]["merges"] == json.loads(tokenizer.build_tokenizer(7).to_str())["model"]["merges"]


def test_the_shipped_template_is_that_of_the_source() -> None:
    assert (MODEL_DIR / "chat_template.jinja").read_text(encoding="utf-8") == chat.TEMPLATE_FILE.read_text(
        encoding="utf-8"
    )


def test_every_skill_is_mostly_right(shipped: Any) -> None:
    asked = [one for skill in generator.SKILLS for one in evaluate.evaluate_skill(*shipped, skill, 3)]
    wrong = [(one.skill, one.expected, one.written) for one in asked if not one.is_exact]
    assert len(wrong) <= len(asked) // 5, wrong


def test_the_first_things_that_people_try(shipped: Any) -> None:
    weather = {"type": "function", "function": {"name": "get_weather", "parameters": {"properties": {"city": {}}}}}
    cases = [
        ("Hello!", [], "Hello! I am Antiphon's embedded model."),
        ("What is 12 + 7?", [], "12 + 7 = 19."),
        ("Repeat after me: antiphon-7391", [], "antiphon-7391"),
        (
            "What is the weather in Oslo?",
            [weather],
            '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>',
        ),
    ]
    written = evaluate.generate_answers(
        *shipped, [chat.render_prompt([user_message(text)], tools) for text, tools, _ in cases]
    )
    assert [text.rpartition("</think>\n\n")[2] for text in written] == [expected for *_, expected in cases]


def test_the_core_answers_as_transformers_does() -> None:
    for skill in ("call", "repeat"):
        plain, served = (
            evaluate.evaluate_model(MODEL_DIR, 2, [skill], options)[skill] for options in (None, EngineOptions())
        )
        assert [one.written for one in served] == [one.written for one in plain]
