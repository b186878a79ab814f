"""Detection of a model's dialect, with the reason."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models

from antiphon.events.inputs import InputMessage
from antiphon.harmony.detection import detect
from antiphon.harmony.detection.detect import (
    NAMES,
    DialectError,
    UnusableTemplateError,
    bytes_format,
    detect_dialect,
    load_format,
)
from antiphon.harmony.dialects.hermes import HERMES
from antiphon.harmony.format import PromptInput
from tests.harmony import parser_helpers


def write_model_folder(
    folder: Path, template: Any = None, config: dict[str, Any] | None = None, **tokenizer: Any
) -> Path:
    model_tokenizer = Tokenizer(models.BPE(vocab={"a": 0, "b": 1}, merges=[]))
    model_tokenizer.add_special_tokens(["<|im_end|>", "<s>"])
    model_tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps(config or {"model_type": "qwen3"}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template, **tokenizer}))
    return folder


def test_given_template_decides_dialect_and_prompt(tmp_path: Path) -> None:
    folder = write_model_folder(tmp_path, "{{ messages }} <tool_call>\n<function=f>")
    own = "{{ messages[0].content }}<seed:tool_call><function=f>"
    assert load_format(folder).format.name == "qwen3-coder"
    assert load_format(folder, template=own).format.name == "seed-oss"
    assert load_format(folder, "hermes", own).format.name == "hermes"
    (folder / "tokenizer.json").unlink()
    with pytest.raises(DialectError) as caught:
        load_format(folder, template=own)
    assert not isinstance(caught.value, UnusableTemplateError)


@pytest.mark.parametrize(
    ("config", "template", "name"),
    [
        ({"model_type": "gpt_oss"}, "", "gpt-oss"),
        ({}, "<|start|>assistant<|channel|>final", "gpt-oss"),
        ({}, "<tool_call>\n<function=f>", "qwen3-coder"),
        ({}, '<tool_call>\n{"name"', "hermes"),
        ({}, "<seed:tool_call><function=f>", "seed-oss"),
        ({}, "<tool_call>{name}\n<arg_key>", "glm"),
        ({}, "<｜tool▁calls▁begin｜>function<｜tool▁sep｜>f\n```json", "deepseek-v3"),
        ({}, "<｜tool▁calls▁begin｜><｜tool▁sep｜>", "deepseek-v3.1"),
        ({}, "<｜DSML｜function_calls>", "deepseek-v3.2"),
        ({}, "<｜DSML｜tool_calls>", "deepseek-v4"),
        ({}, "<｜DSML｜ calls>\n<｜DSML｜ invoke name=", "deepseek-v4.1"),
        ({}, "{% set mark = '｜DSML｜' %}{{ '<' + mark + ' invoke name=' }}", "deepseek-v4.1"),
        ({}, "<｜GCML｜tool_calls> function call<|role_sep|>", "gigachat3.5"),
        ({}, "<|tool_call:start|>f\n<|tool_arg:start|>", "solar-open-2"),
        ({}, "<tool_calls:6124c78e><arg_key:6124c78e>", "hy3"),
        ({}, "{% set s = ':6124c78e' %}{{ '<arg_key{}>'.format(s) }}", "hy3"),
        ({}, "<tool_call><tool_sep><arg_key>", "hy3-preview"),
        ({}, "[BEGIN FINAL RESPONSE]<tool_calls>[", "apriel"),
        ({}, "<|tool_calls_section_begin|>", "kimi-k2"),
        ({}, "<minimax:tool_call><invoke name=", "minimax-m2"),
        ({}, "[AVAILABLE_TOOLS][TOOL_CALLS][", "mistral"),
        ({}, "[TOOL_CALLS]f[ARGS]", "mistral-v11"),
        ({}, '<|eot_id|>{"name": function name, "parameters": x}', "llama3"),
        ({}, "<tool_call>\n<response>", "ernie"),
        ({}, "<|tool_call>call:", "gemma4"),
        ({}, "[INST]", "plain"),
        ({}, "", "plain"),
    ],
)
def test_dialect_is_detected_from_the_template(config: dict[str, Any], template: str, name: str) -> None:
    assert detect_dialect(config, template)[0] == name


def test_harmony_template_over_another_vocabulary_is_not_gpt_oss() -> None:
    template, own_ids = "<|start|>assistant<|channel|>final", {"<|start|>": 200006, "<|channel|>": 200005}
    assert detect_dialect({}, template, own_ids)[0] == "gpt-oss"
    assert detect_dialect({}, template, {"<|start|>": 5, "<|channel|>": 6})[0] == "harmony"
    assert detect_dialect({}, template, {"<|start|>": 200006})[0] == "harmony"
    assert detect_dialect({"model_type": "gpt_oss"}, template, {"<|start|>": 5, "<|channel|>": 6})[0] == "gpt-oss"


def test_load_format_returns_the_reason(tmp_path: Path) -> None:
    loaded = load_format(
        write_model_folder(
            tmp_path, "<tool_call>{{ bos_token }}a", bos_token={"content": "<s>"}, eos_token="<|im_end|>"
        )
    )
    assert loaded.format.name == "hermes"
    assert loaded.reason == "dialect hermes: its chat template writes <tool_call>"
    assert loaded.format.render_prompt(PromptInput(), now=parser_helpers.NOW).text == "<tool_call><s>a"
    assert loaded.format.stop_ids == (2,)


def test_template_is_read_from_a_list_or_a_separate_file(tmp_path: Path) -> None:
    write_model_folder(
        tmp_path, [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "<tool_call>"}]
    )
    assert load_format(tmp_path).format.name == "hermes"
    (tmp_path / "chat_template.jinja").write_text("plain")
    assert load_format(tmp_path).format.name == "plain"


def render_text(folder: Path, **fields: Any) -> str:
    return load_format(folder).format.render_prompt(PromptInput(**fields), now=parser_helpers.NOW).text


@pytest.mark.parametrize("place", ["list", "folder"])
def test_tool_template_is_used_where_there_are_tools(tmp_path: Path, place: str) -> None:
    default, tool_use = "plain", "{% for tool in tools %}<tool_call>{{ tool.function.name }}{% endfor %}"
    templates = [{"name": "default", "template": default}, {"name": "tool_use", "template": tool_use}]
    write_model_folder(tmp_path, templates if place == "list" else default)
    if place == "folder":
        (tmp_path / "additional_chat_templates").mkdir()
        (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text(tool_use)
    assert load_format(tmp_path).format.name == "hermes"
    assert render_text(tmp_path, tools=parser_helpers.TOOLS).startswith("<tool_call>add<tool_call>write")
    assert render_text(tmp_path) == "plain"
    assert render_text(tmp_path, tools=parser_helpers.TOOLS, tool_choice="none") == "plain"


def test_only_named_template_is_used_for_everything(tmp_path: Path) -> None:
    write_model_folder(tmp_path, [{"name": "tool_use", "template": "only"}])
    assert render_text(tmp_path) == render_text(tmp_path, tools=parser_helpers.TOOLS) == "only"


def test_template_of_the_processor_is_read(tmp_path: Path) -> None:
    write_model_folder(tmp_path)
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "of the processor"}))
    assert render_text(tmp_path) == "of the processor"
    assert "ChatML" not in load_format(tmp_path).reason
    write_model_folder(tmp_path, "of the tokenizer")
    assert render_text(tmp_path) == "of the tokenizer"
    (tmp_path / "chat_template.jinja").write_text("of its own file")
    assert render_text(tmp_path) == "of its own file"


def test_chatml_is_used_without_a_template(tmp_path: Path) -> None:
    loaded = load_format(write_model_folder(tmp_path))
    assert "ChatML" in loaded.reason
    prompt = loaded.format.render_prompt(
        PromptInput(items=(InputMessage(role="user", content="ab"),)), now=parser_helpers.NOW
    )
    assert prompt.text == "<|im_start|>user\nab<|im_end|>\n<|im_start|>assistant\n"


def test_explicit_name_overrides_detection(tmp_path: Path) -> None:
    assert load_format(write_model_folder(tmp_path, "x"), "qwen3-coder").reason == "dialect qwen3-coder: chosen by name"
    assert load_format(tmp_path, "gpt-oss").format.name == "gpt-oss"


def test_load_errors_state_the_reason(tmp_path: Path) -> None:
    with pytest.raises(DialectError, match="Use one of: gpt-oss, seed-oss"):
        load_format(tmp_path, "klingon")
    with pytest.raises(DialectError, match=r"no tokenizer\.json"):
        load_format(tmp_path)
    with pytest.raises(DialectError, match="does not compile"):
        load_format(write_model_folder(tmp_path, "{% for %}"))
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(DialectError, match="not valid JSON"):
        load_format(tmp_path)


@pytest.mark.parametrize("name", NAMES)
def test_bytes_format_renders_without_files(name: str) -> None:
    model_format = bytes_format(name)
    prompt = model_format.render_prompt(
        parser_helpers.build_prompt_input(items=(InputMessage(role="user", content="hi"),)), now=parser_helpers.NOW
    )
    assert "hi" in prompt.text and not prompt.in_reasoning and model_format.decode(prompt.tokens) == prompt.text


def test_stale_tiktoken_variable_is_ignored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from antiphon.harmony.gptoss import format as gptoss_format

    monkeypatch.setenv("TIKTOKEN_ENCODINGS_BASE", str(tmp_path))
    gptoss_format.load_encoding.cache_clear()
    assert gptoss_format.load_encoding().encode("a") == [64]


def _nest(depth: int) -> str:
    return "[" * depth + "]" * depth


BROKEN_FILES: list[tuple[str, bytes, str]] = [
    ("tokenizer.json", b"{", "cannot be read as a tokenizer"),
    ("tokenizer.json", b"\xff\xfe", "cannot be read as a tokenizer"),
    ("tokenizer.json", _nest(100_000).encode(), "cannot be read as a tokenizer"),
    ("tokenizer.json", b'{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a b"]}}', "cannot be read"),
    ("config.json", _nest(100_000).encode(), "is not valid JSON"),
    ("config.json", b"\xff{}", "is not valid JSON"),
    ("tokenizer_config.json", b'{"a":' * 50_000, "is not valid JSON"),
    ("chat_template.json", _nest(100_000).encode(), "is not valid JSON"),
    ("chat_template.jinja", b"caf\xe9", "is not UTF-8"),
    ("chat_template.jinja", b"{% if %}", "does not compile"),
    ("chat_template.jinja", b"{{" + b"(" * 5_000, "does not compile"),
    ("chat_template.jinja", b"x" * (20 << 20), "is larger than 1 MiB"),
    ("additional_chat_templates/tool_use.jinja", b"x" * (20 << 20), "is larger than 1 MiB"),
    ("additional_chat_templates/tool_use.jinja", b"caf\xe9", "is not UTF-8"),
]


@pytest.mark.parametrize(("name", "contents", "reason"), BROKEN_FILES, ids=lambda value: str(value)[:30])
def test_broken_file_of_a_model_is_named(tmp_path: Path, name: str, contents: bytes, reason: str) -> None:
    folder = write_model_folder(tmp_path)
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_bytes(contents)
    with pytest.raises(DialectError, match=reason) as caught:
        load_format(folder)
    message = str(caught.value)
    assert str(folder) in message and "\n" not in message and len(message) < 1_000


FILES = (
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.json",
    "chat_template.jinja",
    "additional_chat_templates/tool_use.jinja",
)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_only_regular_files_of_a_model_are_read(tmp_path: Path, name: str, kind: str) -> None:
    folder = write_model_folder(tmp_path)
    file = folder / name
    file.unlink(missing_ok=True)
    file.parent.mkdir(exist_ok=True)
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "device":
        file.symlink_to("/dev/zero")
    else:
        file.mkdir()
    with pytest.raises(DialectError, match="is not a regular file"):
        load_format(folder)


def test_link_to_a_regular_file_is_read(tmp_path: Path) -> None:
    """The hub's cache consists of links."""
    folder = write_model_folder(tmp_path, "{{ messages[0].content }}<tool_call>\n<function=f>")
    (folder / "tokenizer.json").rename(folder / "blob")
    (folder / "tokenizer.json").symlink_to("blob")
    assert load_format(folder).format.name == "qwen3-coder"


def test_long_template_in_a_configuration_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DialectError, match="longer than 1 MiB"):
        load_format(write_model_folder(tmp_path, "x" * (2 << 20)))


def test_line_ends_of_a_template_file_are_normalized(tmp_path: Path) -> None:
    folder = write_model_folder(tmp_path)
    (folder / "chat_template.jinja").write_bytes(b"a\r\nb\rc")
    assert render_text(folder) == "a\nb\nc"


def test_deeply_nested_response_template_is_not_used() -> None:
    """Later versions of Python read deeper JSON than the stack of a function that follows it allows."""
    arguments: dict[str, Any] = {}
    for _ in range(5_000):
        arguments = {"value_parser": {"name": "json", "args": arguments}}
    fields = {"tool_calls": {"open": "<c>", "close": "</c>", "content": "kv-lines", "content_args": arguments}}
    dialect, reason = detect._apply_response_template(HERMES, {"fields": fields}, "by name")
    assert dialect is HERMES and reason == "by name; its response_template is not used: it is nested too deeply"
