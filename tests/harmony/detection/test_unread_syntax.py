"""Calls and reasoning of a chat template that its dialect does not read are told at the start."""

from pathlib import Path

import pytest

from antiphon.harmony.detection.detect import LoadedFormat, bytes_format, load_format
from antiphon.harmony.detection.template_format import TemplateFormat
from tests.harmony.template_models import TEMPLATE_MODELS, TEMPLATES_FOLDER, TemplateModel

NEW_FAMILY = (
    "{% for m in messages %}<|turn|>{{ m.role }}: {% if m.reasoning_content %}<ponder>{{ m.reasoning_content }}</ponder>"
    "{% endif %}{{ m.content }}{% for c in m.tool_calls or [] %}<deed>{{ c.function.name }} with "
    "{{ c.function.arguments | tojson }}</deed>{% endfor %}{% endfor %}{{ tools }}"
)


def load(folder: Path, template: str, dialect: str | None = None) -> LoadedFormat:
    return load_format(TemplateModel("llama-2", "plain").write_folder(folder), dialect, template)


@pytest.mark.parametrize("model", TEMPLATE_MODELS, ids=lambda model: model.name)
def test_known_families_have_no_unread_syntax(model: TemplateModel, tmp_path: Path) -> None:
    loaded = load_format(model.write_folder(tmp_path))
    assert loaded.note == loaded.reason
    assert isinstance(loaded.format, TemplateFormat) and not loaded.format.unread_syntax


def test_unknown_family_is_told_with_its_markers(tmp_path: Path) -> None:
    loaded = load(tmp_path, NEW_FAMILY)
    assert loaded.note == (
        f"{loaded.reason}; warning: its chat template writes calls after '<|turn|>assistant: <deed>' and reasoning after "
        "'<|turn|>assistant: <ponder>', which dialect plain does not read: they are text"
    )


def test_template_without_calls_and_reasoning_is_not_told(tmp_path: Path) -> None:
    for template in (
        "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}",
        "{{ messages[0].content }}",
    ):
        loaded = load(tmp_path, template)
        assert loaded.note == loaded.reason


@pytest.mark.parametrize(
    ("name", "dialect"), [("gigachat-3.5", "gigachat3.0"), ("glm-4.5", "hermes"), ("hy4", "plain")]
)
def test_wrong_dialect_of_a_known_template_is_told(name: str, dialect: str, tmp_path: Path) -> None:
    template = (TEMPLATES_FOLDER / f"{name}.jinja").read_text(encoding="utf-8")
    assert "warning: its chat template writes calls after " in load(tmp_path, template, dialect).note


def test_unknown_reasoning_beside_known_calls_is_told(tmp_path: Path) -> None:
    template = (TEMPLATES_FOLDER / "deepseek-v4.1.jinja").read_text(encoding="utf-8").replace("think>", "muse>")
    note = load(tmp_path, template).note
    assert "writes reasoning after " in note and "calls" not in note.partition("warning")[2]


def test_call_whose_arguments_are_not_read_is_told(tmp_path: Path) -> None:
    template = (
        "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>"
        '{"name": "{{ c.function.name }}", "args": {{ c.function.arguments | tojson }}}</tool_call>{% endfor %}{% endfor %}'
    )
    assert "writes calls after '<tool_call>" in load(tmp_path, template).note
    assert "warning" not in load(tmp_path, template.replace("args", "arguments")).note


def test_format_without_a_model_has_no_warning() -> None:
    loaded = LoadedFormat(bytes_format("glm"), "dialect glm: chosen by name")
    assert loaded.note == loaded.reason
