"""What a request changes about its prompt: variables, documents, its own template, and a message that is continued."""

from typing import Any

import pytest

from antiphon.events.inputs import InputFunctionCall, InputFunctionOutput, InputMessage
from antiphon.harmony.detection.detect import DIALECTS, bytes_format
from antiphon.harmony.detection.template_format import TemplateFormat
from antiphon.harmony.format import PromptInput, TemplateOptions
from antiphon.harmony.grammar import OutputConstraint
from antiphon.harmony.prompt.templates.jinja import ChatTemplate
from antiphon.harmony.rendered_prompt import RenderError, UnsupportedOptionError
from antiphon.harmony.tokens.vocabulary import ByteVocabulary
from antiphon.harmony.tools import ToolTable
from antiphon.state.segments import Say, Think
from tests.harmony import parser_helpers
from tests.harmony.template_models import TEMPLATES_FOLDER

USER = InputMessage(role="user", content="Hi")
BEGUN = InputMessage(role="assistant", content="Once upon ")
HEAD = "<|im_start|>user\nHi<|im_end|>\n"
MARKERS = ("<|im_start|>", "<|im_end|>", "<think>", "</think>", "[bos]")


def make_format(template: str, dialect: str = "hermes", vocabulary: Any = None, **names: str) -> TemplateFormat:
    vocabulary = vocabulary or ByteVocabulary(MARKERS, ("<|im_start|>", "<|im_end|>", "[bos]"))
    return TemplateFormat(DIALECTS[dialect], vocabulary, ChatTemplate(template), names)


def render(model_format: Any, *items: Any, **options: Any) -> str:
    conversation = PromptInput(items=items or (USER,), template=TemplateOptions(**options))
    prompt = model_format.render_prompt(conversation, now=parser_helpers.NOW)
    assert model_format.decode(prompt.tokens).removeprefix("[bos]") == prompt.text
    return str(prompt.text)


def find_fault(model_format: Any, *items: Any, **options: Any) -> tuple[type[RenderError], str | None]:
    with pytest.raises(RenderError) as caught:
        render(model_format, *items, **options)
    return type(caught.value), caught.value.param


@pytest.mark.parametrize(
    ("source", "variables"),
    [
        ("{{ a }}{% set b = 1 %}{{ b }}{% for m in messages %}{{ m.c }}{% endfor %}{{ raise_exception }}", {"a", "messages"}),
        ("{% if x is not defined %}{% set x = 1 %}{% endif %}{{ x }}", {"x"}),
        ("{% macro f(p) %}{{ p }}{{ q }}{% endmacro %}{{ f(namespace(n=range(2))) }}{{ strftime_now('%Y') }}", {"q"}),
        ("{% set ns = namespace(y=z|default(1)) %}{{ ns.y }}", {"z"}),
        ("{% if c %}{% set x = 1 %}{% else %}{% set x = 2 %}{% endif %}{{ x }}", {"c"}),
        ("{% if c %}{% set x = 1 %}{% elif d %}{% set x = 2 %}{% endif %}{{ x }}", {"c", "d", "x"}),
        ("{% for m in messages %}{% set t = m %}{{ t }}{{ loop.index }}{% endfor %}{{ t }}", {"messages", "t"}),
        ("{% for m in messages if m.x and u %}{% else %}{{ m }}{% endfor %}", {"messages", "u", "m"}),
        ("{% set t %}{{ a }}{% endset %}{% with v = t, w = v %}{{ w }}{{ v }}{% endwith %}", {"a", "v"}),
        ("{% macro f(x=y) %}{{ x }}{{ varargs }}{% endmacro %}{% call f() %}{{ z }}{% endcall %}{{ f }}", {"y", "z"}),
        ("{% set x = x or 1 %}{{ x }}{% set a, b = p %}{{ a ~ b }}", {"x", "p"}),
    ],
)  # fmt: skip
def test_variables_of_a_template_are_those_it_reads_and_does_not_set(source: str, variables: set[str]) -> None:
    assert ChatTemplate(source).variables == variables


def test_variables_reach_the_template() -> None:
    model_format = make_format("{{ style }}|{{ data.k[0] }}|{{ messages[0].content }}")
    assert render(model_format, variables={"style": "terse", "data": {"k": [3]}}) == "terse|3|Hi"


@pytest.mark.parametrize("name", ["tone", "bos_token", "range", "strftime_now", "ns"])
def test_variable_that_the_template_does_not_read_is_refused_by_name(name: str) -> None:
    template = (
        "{{ bos_token }}{% set ns = namespace(a=1) %}{% for x in range(1) %}{{ messages[0].content }}{% endfor %}"
    )
    fault = find_fault(make_format(template, bos_token="[bos]"), variables={name: 1})
    assert fault == (UnsupportedOptionError, f"chat_template_kwargs.{name}")


def test_switch_of_reasoning_that_the_template_does_not_read_is_left_out() -> None:
    assert render(make_format("{{ messages[0].content }}"), variables={"enable_thinking": True}) == "Hi"
    assert render(make_format("{{ enable_thinking }}"), variables={"enable_thinking": True, "thinking": True}) == "True"


def test_strings_of_variables_and_documents_never_become_control_tokens() -> None:
    template = "{{ style }}{% for d in documents or [] %}{{ d.text }}{% endfor %}{{ messages[0].content }}"
    model_format = make_format(template)
    conversation = PromptInput(
        items=(USER,),
        template=TemplateOptions(variables={"style": "<|im_end|>"}, documents=({"text": "<|im_start|>"},)),
    )
    prompt = model_format.render_prompt(conversation, now=parser_helpers.NOW)
    assert prompt.text == "<|im_end|><|im_start|>Hi"
    assert not {256, 257} & set(prompt.tokens)


def test_value_that_the_template_compares_with_stays_as_it_is() -> None:
    """`think` could complete the token `<think>`, but a template that names the value must recognize it."""
    model_format = make_format("{% if mode == 'think' %}deep{% else %}{{ mode }}{% endif %}{{ messages[0].content }}")
    assert render(model_format, variables={"mode": "think"}) == "deepHi"
    template = make_format("{% if mode == '<|im_end|>' %}deep{% endif %}{{ mode }}{{ messages[0].content }}")
    prompt = template.render_prompt(
        PromptInput(items=(USER,), template=TemplateOptions(variables={"mode": "<|im_end|>"})), now=parser_helpers.NOW
    )
    assert 257 not in prompt.tokens


def test_documents_need_a_template_that_shows_them() -> None:
    shows = make_format("{% for d in documents %}{{ d.title }};{% endfor %}{{ messages[0].content }}")
    assert render(shows, documents=({"title": "a"}, {"title": "b"})) == "a;b;Hi"
    assert find_fault(bytes_format("hermes"), documents=({"title": "a"},)) == (UnsupportedOptionError, "documents")


def test_generation_prompt_is_left_out_on_request() -> None:
    assert render(bytes_format("hermes")) == HEAD + "<|im_start|>assistant\n"
    assert render(bytes_format("hermes"), add_generation_prompt=False) == HEAD
    fault = find_fault(make_format("{{ messages[0].content }}"), add_generation_prompt=False)
    assert fault == (UnsupportedOptionError, "add_generation_prompt")


def test_continued_message_ends_the_prompt_as_it_was_sent() -> None:
    assert render(bytes_format("hermes"), USER, BEGUN, continue_final_message=True) == (
        HEAD + "<|im_start|>assistant\nOnce upon "
    )
    trims = make_format("{% for m in messages %}[{{ m.role }}] {{ m.content | trim }}{% endfor %}")
    assert render(trims, USER, BEGUN, continue_final_message=True) == "[user] Hi[assistant] Once upon "


@pytest.mark.parametrize("name", ["qwen3", "llama-3.1", "mistral-v3", "gemma-3", "glm-4.5", "deepseek-r1"])
def test_published_templates_end_inside_the_continued_message(name: str) -> None:
    model_format = make_format((TEMPLATES_FOLDER / f"{name}.jinja").read_text(), bos_token="", eos_token="")
    assert render(model_format, USER, BEGUN, continue_final_message=True).endswith("Once upon ")


def test_only_a_text_of_the_assistant_can_be_continued() -> None:
    call = InputFunctionCall(call_id="c", name="f", arguments="{}")
    output = InputFunctionOutput(call_id="c", output="x")
    for items in ((USER,), (USER, call, output), (USER, BEGUN, call)):
        fault = find_fault(bytes_format("hermes"), *items, continue_final_message=True)
        assert fault == (RenderError, "continue_final_message")
    hides = make_format("{{ messages[0].content }}")
    fault = find_fault(hides, USER, BEGUN, continue_final_message=True)
    assert fault == (UnsupportedOptionError, "continue_final_message")


def continue_answer(dialect: str, output: str, **more: Any) -> tuple[str, str]:
    """Returns the text and the reasoning of an output that continues a message."""
    model_format = bytes_format(dialect)
    conversation = PromptInput(items=(USER, BEGUN), template=TemplateOptions(continue_final_message=True), **more)
    prompt = model_format.render_prompt(conversation, now=parser_helpers.NOW)
    reader = model_format.create_reader(prompt, conversation)
    segments = [*reader.feed(model_format.encode(output)), *reader.finish(natural=True)]
    texts = "".join(segment.text for segment in segments if isinstance(segment, Say))
    return texts, "".join(segment.text for segment in segments if isinstance(segment, Think))


def test_continued_text_begins_in_the_middle_of_an_answer() -> None:
    """Reasoning, and calls without an opener, are at the start of an answer only."""
    assert continue_answer("hermes", "<think>a</think>") == ("<think>a</think>", "")
    call = '{"name": "add", "parameters": {"a": 1}}'
    assert continue_answer("llama3", call, tools=parser_helpers.TOOLS) == (call, "")


@pytest.mark.parametrize("dialect", sorted(DIALECTS))
def test_continued_text_is_read_the_same_in_every_dialect(dialect: str) -> None:
    output = 'a time [1, 2] {"a": 1} <think>x</think> end\n'
    for tools in (ToolTable(), parser_helpers.TOOLS):
        assert continue_answer(dialect, output, tools=tools) == (output, "")


def test_grammar_of_a_continued_text_has_no_reasoning() -> None:
    model_format = bytes_format("hermes")
    constraint = OutputConstraint(regex="a+")
    continued = PromptInput(
        items=(USER, BEGUN), template=TemplateOptions(continue_final_message=True), output_constraint=constraint
    )
    fresh = PromptInput(items=(USER,), output_constraint=constraint)
    grammars = [
        model_format.build_grammar(model_format.render_prompt(each, now=parser_helpers.NOW), each) or ""
        for each in (continued, fresh)
    ]
    assert ["[258]" in grammar or "think" in grammar for grammar in grammars] == [False, True]


def test_special_tokens_of_the_tokenizer_surround_the_prompt_on_request() -> None:
    vocabulary = ByteVocabulary(MARKERS, ("<|im_start|>", "<|im_end|>", "[bos]"))
    vocabulary.boundary_ids = ((vocabulary.added_tokens["[bos]"],), (7,))
    model_format = make_format("{{ messages[0].content }}", vocabulary=vocabulary)
    for add, tokens in ((True, (vocabulary.added_tokens["[bos]"], *b"Hi", 7)), (False, tuple(b"Hi"))):
        conversation = PromptInput(items=(USER,), template=TemplateOptions(add_special_tokens=add))
        assert model_format.render_prompt(conversation, now=parser_helpers.NOW).tokens == tokens


def test_template_of_the_request_replaces_that_of_the_model() -> None:
    source = "{% for m in messages %}({{ m.content }}){% endfor %}{{ mood }}"
    assert render(bytes_format("hermes"), source=source, variables={"mood": "!"}) == "(Hi)!"
    fault = find_fault(bytes_format("hermes"), source=source, variables={"mode": "!"})
    assert fault == (UnsupportedOptionError, "chat_template_kwargs.mode")


@pytest.mark.parametrize(
    "source",
    ["{% for", "{{ " + "(" * 3000 + ")" * 3000 + " }}", "{% for a in [] %}" * 30 + "{% endfor %}" * 30, "{% if a %}" * 150 + "{% endif %}" * 150, "{{ 1" + " + 1" * 20_000 + " }}", "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}"],
)  # fmt: skip
def test_template_of_a_request_has_the_bounds_of_the_models_own(source: str) -> None:
    assert find_fault(bytes_format("hermes"), source=source) == (RenderError, "chat_template")


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"source": "x"}, "chat_template"),
        ({"documents": ({"a": "b"},)}, "documents"),
        ({"variables": {"mood": 1}}, "chat_template_kwargs.mood"),
        ({"continue_final_message": True}, "continue_final_message"),
        ({"add_generation_prompt": False}, "add_generation_prompt"),
    ],
)
def test_format_without_a_template_refuses_options_by_name(options: dict[str, Any], param: str) -> None:
    assert find_fault(bytes_format("gpt-oss"), USER, BEGUN, **options) == (UnsupportedOptionError, param)


def test_format_without_a_template_accepts_options_that_change_nothing() -> None:
    model_format = bytes_format("gpt-oss")
    options = {"variables": {"enable_thinking": True}, "add_special_tokens": True}
    assert render(model_format, **options) == render(model_format)


def test_control_tokens_are_text_only_where_they_are_not_syntax() -> None:
    kept = PromptInput(items=(USER,), tools=ToolTable(), keep_special_tokens=True)
    plain = bytes_format("plain")
    prompt = plain.render_prompt(kept, now=parser_helpers.NOW)
    reader = plain.create_reader(prompt, kept)
    segments = [*reader.feed(plain.encode("<think>a</think>b<|endoftext|>c")), *reader.finish(natural=True)]
    assert [type(segment) for segment in segments if isinstance(segment, Think)] == [Think]
    assert "".join(segment.text for segment in segments if isinstance(segment, Say)) == "b<|endoftext|>c"
    for dialect in ("hermes", "gpt-oss"):
        with pytest.raises(UnsupportedOptionError) as refused:
            bytes_format(dialect).render_prompt(kept, now=parser_helpers.NOW)
        assert refused.value.param == "skip_special_tokens"
