"""The shipped weights: size, agreement with the sources, and a sample of every skill that the README promises."""

import json
from typing import Any

import pytest

from antiphon.engine.builder import build_core
from antiphon.engine.embedded import MODEL_DIR
from antiphon.engine.options import EngineOptions
from tests.counts import FULL_COUNTS
from training import chat, evaluate, generator, tokenizer
from training.chat import ChatMessage, ToolDefinition, user_message
from training.pictures import evaluate_pictures
from training.pictures.convert import VISION_TOKENS
from training.skills import claude_code_tools, codex_tools
from training.tool_definitions import make_tool


@pytest.fixture(scope="module")
def shipped_model() -> Any:
    return evaluate.load_model(MODEL_DIR)


def test_shipped_model_is_a_small_qwen3_vl(shipped_model: Any) -> None:
    model, tokenizer = shipped_model
    assert model.config.model_type == "qwen3_vl" and model.config.tie_word_embeddings
    assert 2e6 < sum(p.numel() for p in model.parameters()) < 6e6
    assert (MODEL_DIR / "model.safetensors").stat().st_size < 8e6
    vision_ids = [tokenizer.token_to_id(token) for token in VISION_TOKENS]
    assert model.generation_config.suppress_tokens == vision_ids, "tokens of pictures are never generated"
    assert json.loads((MODEL_DIR / "config.json").read_text(encoding="utf-8"))["dtype"] == "bfloat16"


@pytest.mark.skipif(not FULL_COUNTS, reason="trains the tokenizer again: `make test-full`")
def test_shipped_tokenizer_equals_a_rebuilt_one() -> None:
    shipped_tokenizer = json.loads((MODEL_DIR / "tokenizer.json").read_text(encoding="utf-8"))
    assert shipped_tokenizer["model"]["merges"] == json.loads(tokenizer.build_tokenizer(7).to_str())["model"]["merges"]


def test_shipped_template_equals_the_source_template() -> None:
    assert (MODEL_DIR / "chat_template.jinja").read_text(encoding="utf-8") == chat.TEMPLATE_FILE.read_text(
        encoding="utf-8"
    )


def test_every_skill_is_mostly_correct() -> None:
    by_skill = evaluate.evaluate_model(MODEL_DIR, 3, served=EngineOptions())
    results = [result for answers in by_skill.values() for result in answers]
    assert len(results) == 3 * len(generator.SKILLS)
    failures = [(result.skill, result.expected, result.generated) for result in results if not result.is_exact]
    assert len(failures) <= len(results) // 5, failures


def test_pictures_are_mostly_described_correctly() -> None:
    results = evaluate_pictures.evaluate_pictures(MODEL_DIR, 60)
    counts = evaluate_pictures.count_things(results)
    shares = {name: right / of for name, (right, of) in counts.items()}
    assert all(shares[name] >= score - 0.1 for name, score in evaluate_pictures.MIN_SCORES.items()), counts


def test_common_first_prompts_are_answered_correctly(shipped_model: Any) -> None:
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
    answers = evaluate.generate_answers(
        *shipped_model, [chat.render_prompt([user_message(text)], tools) for text, tools, _ in cases]
    )
    assert [text.rpartition("</think>\n\n")[2] for text in answers] == [expected for *_, expected in cases]


def test_core_answers_equal_those_of_transformers() -> None:
    for skill in ("call", "repeat"):
        expected, results = (
            evaluate.evaluate_model(MODEL_DIR, 2, [skill], options)[skill] for options in (None, EngineOptions())
        )
        assert [result.generated for result in results] == [result.generated for result in expected]


FIRST_REQUESTS = [
    ("run `echo $((6*7))`", "echo $((6*7))"),
    ("list the files in this folder", "ls"),
    ("List the files in the current directory.", "ls"),
    ("show the current directory", "pwd"),
    ("Where am I?", "pwd"),
    ("run pwd", "pwd"),
    ("`pwd`", "pwd"),
    ("run ls -la", "ls -la"),
    ("Run the command `git status`", "git status"),
    ("please execute: make test", "make test"),
    ("Run `cd src && ls`", "cd src && ls"),
    ('run `grep -rn "TODO" . | wc -l`', 'grep -rn "TODO" . | wc -l'),
    ("Please run `python3 -c 'print(6*7)'`", "python3 -c 'print(6*7)'"),
    ("run `ls -l /tmp 2>/dev/null`", "ls -l /tmp 2>/dev/null"),
]
"""First requests of users of coding agents, and the command to run."""
CODEX_TERMINAL = [make_tool(*entry) for entry in codex_tools.TERMINAL_TOOLS]
CODEX_CONTEXT = [
    {"role": "developer", "content": codex_tools.INSTRUCTIONS},
    user_message("<environment_context>\n  <cwd>/work</cwd>\n  <shell>bash</shell>\n</environment_context>"),
]
CLAUDE_CODE = [make_tool(*entry) for entry in claude_code_tools.CLAUDE_CODE_TOOLS]
CLAUDE_CODE_CONTEXT = [{"role": "system", "content": claude_code_tools.SYSTEM.format("299", "sdk-cli")}]


@pytest.mark.parametrize(
    ("context", "tools", "name", "parameter"),
    [
        (CODEX_CONTEXT, [codex_tools.make_exec_command(), *CODEX_TERMINAL], "exec_command", "cmd"),
        (CLAUDE_CODE_CONTEXT, CLAUDE_CODE, "Bash", "command"),
    ],
    ids=["Codex", "Claude Code"],
)
def test_first_requests_of_coding_agents_run_the_exact_command(
    shipped_model: Any, context: list[ChatMessage], tools: list[ToolDefinition], name: str, parameter: str
) -> None:
    prompts = [chat.render_prompt([*context, user_message(text)], tools) for text, _ in FIRST_REQUESTS]
    core = build_core(MODEL_DIR, EngineOptions())
    answers = evaluate.generate_answers(core, shipped_model[1], prompts)
    calls = [chat.render_answer(chat.call_message("", (name, {parameter: command}))) for _, command in FIRST_REQUESTS]
    assert [answer.rpartition("</think>\n\n")[2] for answer in answers] == calls
