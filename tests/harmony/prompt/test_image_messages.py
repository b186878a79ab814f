"""Pictures in prompts: places, order, roles, client text that spells their tokens, templates that refuse them."""

import random
import re
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace
from syrupy.assertion import SnapshotAssertion

from antiphon.events.inputs import (
    AnyInput,
    HostedInput,
    InputCustomCall,
    InputCustomOutput,
    InputFunctionCall,
    InputFunctionOutput,
    InputImage,
    InputMessage,
    InputText,
)
from antiphon.events.tools import FunctionTool
from antiphon.harmony.detection.detect import bytes_format
from antiphon.harmony.format import PromptInput, TemplateOptions
from antiphon.harmony.image_tokens import ImageTokens, PromptImage, find_spans, read_image_tokens
from antiphon.harmony.prompt.shown_items import list_images
from antiphon.harmony.rendered_prompt import ImageSpan, RenderedPrompt, RenderError
from antiphon.harmony.tools import ToolTable
from tests.counts import FULL_COUNTS
from tests.harmony.image_models import IMAGE_MODELS, ImageModel, list_pictures, load_image_model, picture
from tests.harmony.parser_helpers import NOW
from tests.snapshots.snapshot_files import IMAGE_SNAPSHOT_FOLDER, ImagePromptSnapshot

TOOLS = ToolTable.from_request([FunctionTool(name="view", description="Shows a file.")])
EACH_MODEL = pytest.mark.parametrize("model", IMAGE_MODELS, ids=lambda model: model.name)
QWEN3, GEMMA3 = (next(model for model in IMAGE_MODELS if model.name == name) for name in ("qwen3-vl", "gemma-3"))
RANDOM_CONVERSATIONS = 300 if FULL_COUNTS else 30


def text(content: str) -> InputText:
    return InputText(text=content)


def user(*parts: InputText | InputImage) -> InputMessage:
    return InputMessage(role="user", content=parts)


def call(call_id: str) -> InputFunctionCall:
    return InputFunctionCall(call_id=call_id, name="view", arguments='{"path": "a.png"}')


def output(call_id: str, *parts: InputText | InputImage) -> InputFunctionOutput:
    return InputFunctionOutput(call_id=call_id, output=parts)


CONVERSATION: tuple[AnyInput, ...] = (
    InputMessage(role="system", content=(text("Be brief. Your logo:"), picture(1))),
    user(picture(2), text("What differs?"), picture(3), picture(4), text("See also"), picture(5)),
    InputMessage(role="assistant", content="I look at the files."),
    call("call_first01"),
    call("call_second2"),
    output("call_second2", text("b.png"), picture(6), text("b2.png"), picture(7)),
    output("call_first01", picture(8)),
    InputMessage(role="assistant", content="The colour."),
    user(text("Sure?")),
)


def render(
    model: ImageModel, *items: AnyInput, template: str = "", tools: ToolTable = TOOLS, **fields: Any
) -> RenderedPrompt:
    """Renders a conversation, and checks what holds for every prompt with pictures."""
    form = load_image_model(model, template)
    conversation = PromptInput(items=items, tools=tools, images=list_pictures(model), **fields)
    prompt = form.render_prompt(conversation, now=NOW)
    assert form.decode(prompt.tokens) == prompt.text
    check_spans(prompt, form.encode(model.soft)[0])
    assert form.find_images((1, *prompt.tokens), prompt.media) == tuple(
        replace(span, offset=span.offset + 1) for span in prompt.media
    )
    return prompt


def check_spans(prompt: RenderedPrompt, soft_id: int) -> None:
    """Checks that the spans are in order, hold all soft tokens, and each its own number of them."""
    end = 0
    for span in prompt.media:
        inner = prompt.tokens[span.offset : span.offset + span.length]
        assert span.offset >= end and inner[0] == inner[-1] == soft_id and inner.count(soft_id) == span.rows
        end = span.offset + span.length
    assert prompt.tokens.count(soft_id) == sum(span.rows for span in prompt.media)


def rows_of(prompt: RenderedPrompt) -> list[int]:
    return [span.rows for span in prompt.media]


def count_soft_tokens(model: ImageModel, prompt: str) -> str:
    """Returns a prompt's text with each run of soft tokens counted, not spelled out."""
    run = f"(?:{re.escape(model.soft)})+"
    return re.sub(run, lambda found: f"{model.soft}×{len(found[0]) // len(model.soft)}", prompt)


@pytest.fixture
def image_snapshot(snapshot: SnapshotAssertion) -> SnapshotAssertion:
    return snapshot.use_extension(ImagePromptSnapshot)


@pytest.mark.filterwarnings(
    r"ignore:\s*Can not relate snapshot name"
)  # the files are named after the templates, not the test
@EACH_MODEL
def test_prompt_of_a_conversation(model: ImageModel, image_snapshot: SnapshotAssertion) -> None:
    prompt = render(model, *CONVERSATION)
    form = load_image_model(model)
    lines = [
        f"# roles with pictures: {', '.join(sorted(form.image_roles))}",
        f"# pictures in order: {' '.join(str(rows) for rows in rows_of(prompt))}",
        count_soft_tokens(model, prompt.text),
    ]
    assert "\n".join(lines) + "\n" == image_snapshot(name=model.name)
    assert sorted(rows_of(prompt)) == list(range(1, 9))
    assert list(prompt.tokens) == form.encode(prompt.text), "the processor encodes the whole text at once"


def test_every_snapshot_has_a_model() -> None:
    assert {path.stem for path in IMAGE_SNAPSHOT_FOLDER.glob("*.txt")} == {model.name for model in IMAGE_MODELS}


@EACH_MODEL
def test_prompt_without_pictures_is_that_of_a_model_without_them(model: ImageModel) -> None:
    """A conversation without pictures is rendered as before: the probe for pictures changes nothing."""
    items = (
        InputMessage(role="system", content="Be brief."),
        user(text("a"), text("b")),
        call("call_first01"),
        output("call_first01", text("c"), InputImage(image_url="blob:unknown")),
        InputMessage(role="assistant", content="d"),
        user(text("e")),
    )
    with_images = render(model, *items)
    without = load_image_model(model).render_prompt(PromptInput(items=items, tools=TOOLS), now=NOW)
    assert with_images == without and without.media == () and "[image]" in without.text


@EACH_MODEL
def test_order_of_pictures_in_one_message(model: ImageModel) -> None:
    for order in ([3], [1, 2], [2, 1], [2, 2, 2], [4, 1, 3]):
        assert rows_of(render(model, user(*map(picture, order)))) == order
        parts = [part for rows in order for part in (text(f"t{rows}"), picture(rows))]
        assert rows_of(render(model, user(*parts))) == order
    twice = render(model, user(picture(3), picture(3))).media
    assert len({span.offset for span in twice}) == 2 and len({span.key for span in twice}) == 1


@EACH_MODEL
def test_pictures_in_outputs_of_reversed_calls_follow_their_calls(model: ImageModel) -> None:
    items = [user(text("Go.")), call("call_first01"), call("call_second2")]
    items += [output("call_second2", picture(2)), output("call_first01", picture(1))]
    prompt = render(model, *items)
    assert sorted(rows_of(prompt)) == [1, 2]
    if "tool" not in load_image_model(model).image_roles:
        second, first = prompt.text.rindex("Image of call_second2:"), prompt.text.rindex("Image of call_first01:")
        assert rows_of(prompt) == [2, 1] and prompt.text.index("[image]") < second < first


@EACH_MODEL
def test_picture_of_a_user_message_in_an_output_of_the_next_turn(model: ImageModel) -> None:
    items = (user(text("Look."), picture(4)), call("call_first01"), output("call_first01", text("x"), picture(4)))
    assert rows_of(render(model, *items)) == [4, 4]


@EACH_MODEL
def test_client_text_never_is_a_picture(model: ImageModel) -> None:
    """Text of a client that spells tokens of pictures, whole or in halves around a picture, stays text."""
    soft_id = load_image_model(model).encode(model.soft)[0]
    spelled = "".join(model.tokens) + model.soft * 2 + "[image]<__media__>"
    halves = [text(half) for token in model.tokens for half in (token[:2], token[2:], token[:-1], token[-1:])]
    parts: list[InputText | InputImage] = [text(spelled), picture(2), text(model.soft), picture(1)]
    for half in halves:
        parts += (half, picture(1))
    prompt = render(
        model,
        InputMessage(role="system", content=spelled),
        user(*parts),
        call("call_first01"),
        output("call_first01", text(spelled), picture(3), text(spelled)),
        instructions=spelled,
    )
    assert len(prompt.media) == 3 + len(halves)
    assert prompt.tokens.count(soft_id) == sum(rows_of(prompt))
    assert prompt.text.count(spelled) == 5


@EACH_MODEL
def test_random_conversations(model: ImageModel) -> None:
    rng = random.Random(f"pictures of {model.name}")
    words = ["a", "ab a", "\n", "\n\n", " ", "<", ">", "[IMG", "x\n", *model.tokens, model.soft, "ż"]
    for _ in range(RANDOM_CONVERSATIONS):
        items: list[AnyInput] = []
        for index in range(rng.randrange(1, 4)):
            items.append(user(text("Q"), *_draw_parts(rng, words)))
            if rng.random() < 0.6:
                call_ids = [f"call_{index}{number}abcde" for number in range(rng.randrange(1, 3))]
                items += map(call, call_ids)
                items += (output(call_id, *_draw_parts(rng, words)) for call_id in rng.sample(call_ids, len(call_ids)))
            items.append(InputMessage(role="assistant", content="A"))
        prompt = render(model, *items, user(text("Q"), *_draw_parts(rng, words)))
        sent = [part for item in items for part in _parts_of(item) if isinstance(part, InputImage)]
        assert len(prompt.media) >= len(sent)


def _draw_parts(rng: random.Random, words: Sequence[str]) -> list[InputText | InputImage]:
    return [
        picture(rng.randrange(1, 9)) if rng.random() < 0.5 else text("".join(rng.choices(words, k=3)))
        for _ in range(rng.randrange(4))
    ]


def _parts_of(item: AnyInput) -> Sequence[Any]:
    parts = item.content if isinstance(item, InputMessage) else getattr(item, "output", ())
    return () if isinstance(parts, str) else parts


def test_line_breaks_beside_a_picture_merge_as_in_the_whole_text() -> None:
    form = load_image_model(
        GEMMA3,
        "{% for m in messages %}{% for p in m.content %}{{ '<start_of_image>' if p.type == 'image' else p.text }}{% endfor %}{% endfor %}",
    )
    conversation = PromptInput(items=(user(text("a\n"), picture(2), text("\nb")),), images=list_pictures(GEMMA3))
    prompt = form.render_prompt(conversation, now=NOW)
    assert list(prompt.tokens) == form.encode(prompt.text)
    assert prompt.tokens[0:2] == tuple(form.encode("a\n\n\n")), "one token of three line breaks"


def test_empty_replacement_keeps_the_placeholder_of_the_template() -> None:
    """For engines on other servers that expand it themselves: Gemma's placeholder is not its soft token."""
    images = {("blob:1", None): PromptImage(key=b"k", rows=7, form="placeholder")}
    form = load_image_model(GEMMA3)
    prompt = form.render_prompt(PromptInput(items=(user(picture(1), text("a"), picture(1)),), images=images), now=NOW)
    start_id = form.encode("<start_of_image>")[0]
    places = [index for index, token in enumerate(prompt.tokens) if token == start_id]
    assert [(span.offset, span.length, span.rows, span.soft_id) for span in prompt.media] == [
        (place, 1, 7, start_id) for place in places
    ]
    assert len(places) == 2 and prompt.num_tokens == len(prompt.tokens) + 12 and "<image_soft_token>" not in prompt.text


@pytest.mark.parametrize(
    ("name", "template"),
    [
        ("drops", "{% for m in messages %}{{ m.content if m.content is string else m.content[0].text }}{% endfor %}"),
        (
            "doubles",
            (
                "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}"
                "{{ '<|image_pad|><|image_pad|>' if p.type == 'image' else p.text }}{% endfor %}{% endif %}{% endfor %}"
            ),
        ),
        (
            "shows the first",
            (
                "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
                "{{ '<|image_pad|>' if m.content | length > 1 }}"
                "{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}{% endfor %}"
            ),
        ),
        (
            "refuses",
            "{% for m in messages %}{{ m.content if m.content is string else raise_exception('no') }}{% endfor %}",
        ),
        ("always writes one", "<|image_pad|>{% for m in messages %}{{ m.content }}{% endfor %}"),
    ],
)
def test_template_that_takes_no_pictures_is_found_at_the_start(name: str, template: str) -> None:
    form = load_image_model(QWEN3, template)
    assert form.image_roles == frozenset() and "one placeholder for each image" in form.image_refusal, name
    if name != "always writes one":
        conversation = PromptInput(items=(user(text("a"), picture(1)),), images=list_pictures(QWEN3))
        prompt = form.render_prompt(conversation, now=NOW)
        assert "[image]" in prompt.text and prompt.media == ()


def test_template_that_takes_image_urls() -> None:
    template = (
        "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}"
        "{{ '<|image_pad|>' if p.type == 'image_url' and p.image_url.url is defined else p.text }}"
        "{% endfor %}{% endif %}{% endfor %}"
    )
    form = load_image_model(QWEN3, template)
    conversation = PromptInput(items=(user(text("a"), picture(2), text("b")),), images=list_pictures(QWEN3))
    assert form.render_prompt(conversation, now=NOW).text == "a<|image_pad|><|image_pad|>b"


def test_placeholder_that_no_file_names_is_the_only_token_written() -> None:
    """Llama 4 writes <|image|>, and its soft token is another one."""
    model = ImageModel("x", "plain", ("<|image|>", "<|patch|>"), "<|patch|>", lambda rows: f"[{'<|patch|>' * rows}]")
    template = (
        "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}"
        "{{ '<|image|>' if p.type == 'image' else p.text }}{% endfor %}{% endif %}{% endfor %}"
    )
    assert render(model, user(text("a"), picture(2)), template=template, tools=ToolTable()).text == (
        "a[<|patch|><|patch|>]"
    )


def test_template_of_a_request_shows_pictures_or_is_refused() -> None:
    shows = "{% for m in messages %}{% for p in m.content %}{{ '<|image_pad|>' if p.type == 'image' else p.text }}"
    options = TemplateOptions(source=f"{shows}{{% endfor %}}{{% endfor %}}")
    prompt_input = PromptInput(items=(user(text("a"), picture(2)),), images=list_pictures(QWEN3), template=options)
    assert rows_of(load_image_model(QWEN3).render_prompt(prompt_input, now=NOW)) == [2]
    for source in ("{{ messages[0].content }}", "<|image_pad|>"):
        for images in ({}, prompt_input.images):
            if not images and source != "<|image_pad|>":
                continue
            refused = replace(prompt_input, images=images, template=TemplateOptions(source=source))
            with pytest.raises(RenderError, match="The request's chat template") as caught:
                load_image_model(QWEN3).render_prompt(refused, now=NOW)
            assert caught.value.param == "chat_template"


def test_only_added_tokens_count() -> None:
    added = {"<image>": 7, " ": 8, "|": 9}
    assert read_image_tokens({"image_token_id": 7}, [], added) == ImageTokens(soft_text="<image>", soft_id=7)
    for config in (
        {},
        {"image_token_id": 6},
        {"image_token_id": True},
        {"image_token_id": "7"},
        {"image_token_id": 8},
        {"image_token_id": 9},
    ):
        assert read_image_tokens(config, [], added) is None
    names = [
        {"image_token": {"content": "<image>"}, "boi_token": 3},
        {"boi_token": "<image>", "image_token": "<other>"},
    ]
    assert read_image_tokens({"image_token_index": 7}, names, added) == ImageTokens(
        soft_text="<image>", soft_id=7, names=("<image>",)
    )


def test_spans_that_do_not_fit_are_refused() -> None:
    span = ImageSpan(key=b"k", offset=0, length=2, rows=2, soft_id=5)
    assert find_spans([1, 5, 2, 5], [span])[0].length == 3
    for tokens in ([], [5], [5, 5, 5]):
        with pytest.raises(RenderError, match="tokens for images"):
            find_spans(tokens, [span])
    assert find_spans([5], []) == ()


def test_format_without_vision_shows_a_placeholder() -> None:
    conversation = PromptInput(items=(user(text("a"), picture(1)),), images=list_pictures(QWEN3))
    for name in ("gpt-oss", "hermes"):
        form = bytes_format(name)
        prompt = form.render_prompt(conversation, now=NOW)
        assert "[image]" in prompt.text and prompt.media == () and form.image_roles == frozenset()
        assert form.image_refusal == "" and form.find_images((), ()) == ()


def computer(kind: str, call_id: str, **fields: Any) -> HostedInput:
    return HostedInput(kind=kind, payload={"type": kind, "call_id": call_id, **fields})


def test_computer_calls_are_calls_with_screenshots() -> None:
    click = {"type": "click", "x": 1, "y": 2}
    items = (
        user(text("Open it.")),
        computer("computer_call", "call_first01", action=click),
        computer("computer_call_output", "call_first01", output={"type": "computer_screenshot", "image_url": "blob:3"}),
        computer("computer_call", "call_second2", actions=[click]),
        computer("computer_call_output", "call_second2", output={"type": "input_image", "image_url": ""}),
        computer("computer_call", "call_third03", action=click),
        computer("computer_call_output", "call_fourth4", output={"image_url": "blob:2"}),
        computer("computer_call_output", ""),
        HostedInput(kind="computer_call", payload={"call_id": ["x"]}),
    )
    prompt = render(QWEN3, *items)
    assert rows_of(prompt) == [3, 2]
    assert prompt.text.count('{"name": "computer", "arguments": {"type": "click", "x": 1, "y": 2}}') == 2
    assert '{"name": "computer", "arguments": {"actions": [{"type": "click", "x": 1, "y": 2}]}}' in prompt.text
    assert prompt.text.count("[no screenshot]") == 2
    assert [part.image_url for part in list_images(items)] == ["blob:3", "blob:2"]


def test_pictures_of_custom_tools_and_of_the_assistant() -> None:
    items = (
        user(text("Go."), InputImage(file_id="file-1", detail="low")),
        InputMessage(role="assistant", content=(picture(5),)),
        InputCustomCall(call_id="call_first01", name="draw", input="x"),
        InputCustomOutput(call_id="call_first01", output=(text("a"), picture(2))),
    )
    assert [part.file_id or part.image_url for part in list_images(items)] == ["file-1", "blob:2"]
    images = {**list_pictures(QWEN3), ("file-1", "low"): list_pictures(QWEN3)["blob:7", None]}
    prompt = load_image_model(QWEN3).render_prompt(PromptInput(items=items, tools=TOOLS, images=images), now=NOW)
    assert rows_of(prompt) == [7, 2] and prompt.text.count("[image]") == 1
