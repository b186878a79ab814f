"""The token history: output that a client sends back unchanged is rendered with the token ids the model generated."""

from datetime import UTC, datetime
from random import Random
from typing import Any, cast

import msgspec
import pytest

from antiphon.app.errors import ApiError
from antiphon.app.requests.responses.input_items import read_item
from antiphon.app.turns.prompts.prompt_renderer import _keep_last_tokens
from antiphon.app.turns.prompts.prompt_token_cache import (
    BYTES_PER_TOKEN,
    MAX_COMPARED_TURNS,
    MAX_OMITTED_TOKENS,
    TURN_OVERHEAD_TOKENS,
    FinishedTurn,
    PromptTokenCache,
    TurnPrompt,
    _last_message_end,
    _prefix_keys,
    _size_tokens,
)
from antiphon.events.builtin_calls import (
    ApplyPatchCall,
    CreateFile,
    DeleteFile,
    ShellAction,
    ShellCall,
    ShellExit,
    ShellOutput,
    UpdateFile,
)
from antiphon.events.inputs import (
    AnyInput,
    InputFunctionCall,
    InputFunctionOutput,
    InputMessage,
    InputPatchOutput,
    InputReasoning,
    InputShellOutput,
    InputText,
)
from antiphon.events.items import FunctionCall, Message, OutputText, Reasoning, ReasoningText
from antiphon.events.response import OutputItem
from antiphon.events.tools import FunctionTool, PatchTool, ShellTool
from antiphon.harmony.detection.detect import bytes_format
from antiphon.harmony.format import ModelFormat, PromptInput, TextOnlyFormat
from antiphon.harmony.image_tokens import find_spans
from antiphon.harmony.rendered_prompt import ImageSpan, RenderedPrompt
from antiphon.harmony.tools import ToolTable
from tests.harmony.image_models import IMAGE_MODELS, list_pictures, load_image_model, picture

NOW = datetime(2026, 1, 1, tzinfo=UTC)
TOOLS = ToolTable.from_request([FunctionTool(name="add", parameters={"type": "object"})])
QUESTION = InputMessage(role="user", content="Add.")
REASONING = InputReasoning(content=[ReasoningText(text="Hm.")])
CALL = InputFunctionCall(call_id="call_1", name="add", arguments='{"a": 1}')
CALL_OUTPUT = InputFunctionOutput(call_id="call_1", output="2")
ANSWER = InputMessage(role="assistant", content="Two.")
CALL_ITEMS = (
    Reasoning(id="rs_1", status="completed", content=(ReasoningText(text="Hm."),)),
    FunctionCall(id="fc_1", status="completed", call_id="call_1", name="add", arguments='{"a": 1}'),
)
ANSWER_ITEMS = (Message(id="msg_1", status="completed", content=(OutputText(text="Two."),)),)
CALL_TEXTS = {
    "hermes": '<think>\nHm.\n</think>\n\n<tool_call>\n{"name":"add","arguments":{"a":1}}\n</tool_call><|im_end|>',
    "gpt-oss": "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.add "
    '<|constrain|>json<|message|>{"a":  1}<|call|>',
}


def render_prompt(
    history: PromptTokenCache, model_format: ModelFormat, *items: AnyInput, owner: str = "me"
) -> TurnPrompt:
    return history.render(model_format, owner, PromptInput(items=items, tools=TOOLS), NOW)


def add_answer(history: PromptTokenCache, model_format: ModelFormat, output: str) -> TurnPrompt:
    turn_prompt = render_prompt(history, model_format, QUESTION)
    history.add_turn(FinishedTurn(turn_prompt, tuple(model_format.encode(output)), ANSWER_ITEMS))
    return turn_prompt


def start_with_call(dialect: str) -> tuple[ModelFormat, PromptTokenCache, tuple[int, ...]]:
    """Returns a format, a history with one tool-calling turn, and the tokens of that turn's prompt and output."""
    model_format, history = bytes_format(dialect), PromptTokenCache()
    turn_prompt = render_prompt(history, model_format, QUESTION)
    output = tuple(model_format.encode(CALL_TEXTS[dialect]))
    history.add_turn(FinishedTurn(turn_prompt, output, CALL_ITEMS))
    return model_format, history, turn_prompt.prompt.tokens + output


@pytest.mark.parametrize("dialect", CALL_TEXTS)
def test_call_is_rendered_with_its_generated_tokens(dialect: str) -> None:
    model_format, history, tokens = start_with_call(dialect)
    following = render_prompt(history, model_format, QUESTION, REASONING, CALL, CALL_OUTPUT)
    assert following.rendered_tokens[: len(tokens)] != tokens
    assert following.prompt.tokens[: len(tokens)] == tokens
    remaining = model_format.decode(following.prompt.tokens[len(tokens) :])
    assert "2" in remaining and following.prompt.text.endswith(remaining)


PATCH_TEXT = "*** Begin Patch\n*** Add File: a\n+x\n*** Update File: b\n@@\n-y\n+z\n*** Delete File: c\n*** End Patch"
PATCHES = [CreateFile(path="a", diff="+x\n"), UpdateFile(path="b", diff="@@\n-y\n+z\n"), DeleteFile(path="c")]
COMMANDS = ShellAction(commands=("ls", 'echo "é"'), timeout_ms=5)
BUILTIN_TURNS: dict[str, tuple[str, list[OutputItem], list[AnyInput]]] = {
    "patch of three files": (
        "apply_patch",
        [
            ApplyPatchCall(id=f"apc_{number}", status="completed", call_id=f"call_{number}", operation=operation)
            for number, operation in enumerate(PATCHES)
        ],
        [InputPatchOutput(call_id=f"call_{number}", status="completed") for number in range(len(PATCHES))],
    ),
    "two commands": (
        "shell",
        [ShellCall(id="sh_1", status="completed", call_id="call_1", action=COMMANDS)],
        [InputShellOutput(call_id="call_1", output=(ShellOutput(stdout="a", outcome=ShellExit(exit_code=0)),))],
    ),
}


@pytest.mark.parametrize("name", BUILTIN_TURNS)
@pytest.mark.parametrize("dialect", CALL_TEXTS)
def test_builtin_call_is_rendered_with_its_generated_tokens(dialect: str, name: str) -> None:
    tool, output, results = BUILTIN_TURNS[name]
    arguments = PATCH_TEXT if tool == "apply_patch" else '{"commands":["ls","echo \\"é\\""],"timeout_ms":5}'
    texts = {
        ("hermes", "apply_patch"): f"<tool_call>\n<custom=apply_patch>\n{arguments}\n</custom>\n</tool_call><|im_end|>",
        ("hermes", "shell"): f'<tool_call>\n{{"name":"shell","arguments":{arguments}}}\n</tool_call><|im_end|>',
        (
            "gpt-oss",
            "apply_patch",
        ): f"<|channel|>commentary to=functions.apply_patch <|constrain|>code<|message|>{arguments}\n<|call|>",
        (
            "gpt-oss",
            "shell",
        ): f"<|channel|>commentary to=functions.shell <|constrain|>json<|message|>{arguments}<|call|>",
    }
    model_format, history = bytes_format(dialect), PromptTokenCache()
    tools = ToolTable.from_request([ShellTool(), PatchTool()])

    def render(*items: AnyInput) -> TurnPrompt:
        return history.render(model_format, "me", PromptInput(items=items, tools=tools), NOW)

    first, tokens = render(QUESTION), tuple(model_format.encode(texts[dialect, tool]))
    history.add_turn(FinishedTurn(first, tokens, tuple(output)))
    resent = [read_item(msgspec.to_builtins(item), "input") for item in output]
    following = render(QUESTION, *resent, *results)
    spoken = first.prompt.tokens + tokens
    assert following.prompt.tokens[: len(spoken)] == spoken


@pytest.mark.parametrize("dialect", CALL_TEXTS)
def test_several_turns_are_rendered_with_their_generated_tokens(dialect: str) -> None:
    model_format, history, tokens = start_with_call(dialect)
    second = render_prompt(history, model_format, QUESTION, REASONING, CALL, CALL_OUTPUT)
    output = tuple(model_format.encode(CALL_TEXTS[dialect]))
    history.add_turn(FinishedTurn(second, output, CALL_ITEMS))
    third = render_prompt(history, model_format, QUESTION, *(REASONING, CALL, CALL_OUTPUT) * 2)
    second_tokens = second.prompt.tokens + output
    assert second_tokens[: len(tokens)] == tokens
    assert third.prompt.tokens[: len(second_tokens)] == second_tokens


@pytest.mark.parametrize("dialect", CALL_TEXTS)
def test_changed_items_are_rendered_from_their_text(dialect: str) -> None:
    model_format, history, _ = start_with_call(dialect)
    other = InputFunctionCall(call_id="call_1", name="add", arguments='{"a": 2}')
    for items in [
        (QUESTION, REASONING, other, CALL_OUTPUT),
        (QUESTION, CALL, CALL_OUTPUT),
        (QUESTION, CALL_OUTPUT, REASONING, CALL),
    ]:
        following = render_prompt(history, model_format, *items)
        assert following.prompt.tokens == following.rendered_tokens


def test_turns_of_other_owners_or_models_are_not_used() -> None:
    model_format, history, _ = start_with_call("hermes")
    for other, owner in [(model_format, "you"), (bytes_format("hermes"), "me")]:
        following = render_prompt(history, other, QUESTION, REASONING, CALL, CALL_OUTPUT, owner=owner)
        assert following.prompt.tokens == following.rendered_tokens


def test_reasoning_that_the_template_drops_is_not_restored() -> None:
    model_format, history = bytes_format("gpt-oss"), PromptTokenCache()
    output = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Two.<|return|>"
    turn_prompt = render_prompt(history, model_format, QUESTION)
    items = (CALL_ITEMS[0], *ANSWER_ITEMS)
    history.add_turn(FinishedTurn(turn_prompt, tuple(model_format.encode(output)), items))
    following = render_prompt(history, model_format, QUESTION, REASONING, ANSWER, QUESTION)
    assert "Hm." not in following.prompt.text
    assert following.prompt.tokens == following.rendered_tokens


def test_final_answer_keeps_its_text_and_gets_the_end_of_history() -> None:
    model_format, history = bytes_format("gpt-oss"), PromptTokenCache()
    add_answer(history, model_format, "<|channel|>final<|message|>Two. <|return|>")
    following = render_prompt(history, model_format, QUESTION, ANSWER, QUESTION)
    assert "Two. <|end|>" in model_format.decode(following.prompt.tokens)
    assert "Two.<|end|>" in model_format.decode(following.rendered_tokens)


def test_unfinished_turn_gets_the_end_of_history() -> None:
    model_format, history = bytes_format("hermes"), PromptTokenCache()
    add_answer(history, model_format, "Two. ")
    following = render_prompt(history, model_format, QUESTION, ANSWER, QUESTION)
    assert "Two. <|im_end|>" in model_format.decode(following.prompt.tokens)


def test_oldest_turns_are_evicted() -> None:
    model_format, history, tokens = start_with_call("hermes")
    history = PromptTokenCache(bound=3 * len(tokens) + TURN_OVERHEAD_TOKENS)
    turn_prompt = render_prompt(history, model_format, QUESTION)
    history.add_turn(FinishedTurn(turn_prompt, tokens[len(turn_prompt.rendered_tokens) :], CALL_ITEMS))
    following = render_prompt(history, model_format, QUESTION, REASONING, CALL, CALL_OUTPUT)
    assert following.prompt.tokens[: len(tokens)] == tokens
    for _ in range(3):
        add_answer(history, model_format, "Two.<|im_end|>")
    following = render_prompt(history, model_format, QUESTION, REASONING, CALL, CALL_OUTPUT)
    assert following.prompt.tokens == following.rendered_tokens


def test_number_of_short_turns_is_limited() -> None:
    model_format, history = bytes_format("hermes"), PromptTokenCache(bound=10 * TURN_OVERHEAD_TOKENS)
    for _ in range(20):
        add_answer(history, model_format, "Two.<|im_end|>")
    assert 0 < len(history.turns) < 10


def test_indexed_lookup_agrees_with_a_search_of_all_turns() -> None:
    dice, history = Random(7), PromptTokenCache(bound=60 * TURN_OVERHEAD_TOKENS)
    formats = [bytes_format("hermes"), bytes_format("hermes")]
    messages = [InputMessage(role="user", content=text) for text in ("a", "b", "ab")]

    def render_random_prompt() -> TurnPrompt:
        items = [dice.choice(messages) for _ in range(dice.randint(1, 4))]
        return render_prompt(history, dice.choice(formats), *items, owner=dice.choice(["me", "you"]))

    for _ in range(200):
        turn_prompt = render_random_prompt()
        expected = [
            entry
            for entry in reversed(history.turns)
            if (entry.turn.turn_prompt.owner, entry.turn.turn_prompt.format) == (turn_prompt.owner, turn_prompt.format)
            and turn_prompt.rendered_tokens[
                : (end := _last_message_end(turn_prompt.format, entry.turn.turn_prompt.rendered_tokens) + 1)
            ]
            == entry.turn.turn_prompt.rendered_tokens[:end]
        ]
        found = history._find_candidates(
            _prefix_keys(turn_prompt.format, turn_prompt.owner, turn_prompt.rendered_tokens)
        )
        assert found == expected[:MAX_COMPARED_TURNS]
        history.add_turn(FinishedTurn(render_random_prompt(), (1,), ANSWER_ITEMS))
    assert sum(map(len, history.by_start.values())) == len(history.turns) < 60, "evicted turns are not found"
    assert all(history.by_start.values())


def remember(history: PromptTokenCache, *, num_tokens: int = 1, request_bytes: int = 0) -> FinishedTurn:
    model_format = bytes_format("hermes")
    turn_prompt = render_prompt(history, model_format, QUESTION)
    turn = FinishedTurn(turn_prompt, (65,) * num_tokens, ANSWER_ITEMS, request_bytes)
    history.add_turn(turn)
    return turn


def test_long_turn_evicts_as_many_short_ones_as_it_needs() -> None:
    history = PromptTokenCache(bound=10_000)
    for _ in range(10):
        short = remember(history)
    num_tokens = 10_000 - 3 * _size_tokens(short)
    remember(history, num_tokens=num_tokens)
    assert len(history.turns) < 5
    assert history.num_tokens == sum(_size_tokens(entry.turn) for entry in history.turns) <= 10_000


@pytest.mark.parametrize(("room", "num_kept"), [(0, 3), (-1, 2), (1, 3)])
def test_turns_are_kept_up_to_the_bound_itself(room: int, num_kept: int) -> None:
    size = _size_tokens(remember(PromptTokenCache()))
    history = PromptTokenCache(bound=3 * size + room)
    for _ in range(5):
        remember(history)
    assert len(history.turns) == num_kept


def test_size_of_a_turn_counts_prompt_output_and_request() -> None:
    turn = remember(PromptTokenCache(), num_tokens=5, request_bytes=3 * BYTES_PER_TOKEN)
    num_prompt_tokens = len(turn.turn_prompt.rendered_tokens)
    assert _size_tokens(turn) == TURN_OVERHEAD_TOKENS + 2 * num_prompt_tokens + 5 + 3


END, START = 0, 1
"""Ids of the tokens of `CharacterFormat` that end a message and start an answer."""


class CharacterFormat(TextOnlyFormat):
    """A format with one token for each character. Its prompts end in `num_start_tokens`, which history leaves out."""

    end_ids = frozenset((END,))

    def __init__(self, num_start_tokens: int = 1, end_of_message: tuple[int, ...] = (END,)) -> None:
        self._start, self._end = (START,) * num_start_tokens, end_of_message

    def render_prompt(self, prompt_input: PromptInput, *, now: datetime, owner: str) -> RenderedPrompt:
        tokens: list[int] = []
        for item in prompt_input.items:
            assert isinstance(item, InputMessage)
            text = item.content if isinstance(item.content, str) else "".join(part.text for part in item.content)  # type: ignore[union-attr]
            tokens += [*map(ord, text), *self._end]
        return RenderedPrompt(tokens=(*tokens, *self._start), text="")

    def decode(self, tokens: Any) -> str:
        return "".join(map(chr, tokens))


def say(text: str) -> tuple[Message, ...]:
    return (Message(id="msg_1", status="completed", content=(OutputText(text=text),)),)


def add_spaced_answer(history: PromptTokenCache, model_format: Any, text: str, *items: AnyInput) -> FinishedTurn:
    """Adds a turn whose answer was generated with other white space than its item has."""
    prompt = render_prompt(history, model_format, *items)
    return FinishedTurn(prompt, (*map(ord, f" {text} "), END), say(text))


def read_following(history: PromptTokenCache, model_format: Any, *items: AnyInput) -> str:
    """Returns the prompt of a following turn, with a bar for each end and without the start of the answer."""
    return "".join(map(chr, render_prompt(history, model_format, *items).prompt.tokens)).replace(chr(END), "|")


Q, A, R = (InputMessage(role=role, content=text) for role, text in [("user", "q"), ("assistant", "a"), ("user", "r")])


@pytest.mark.parametrize(
    ("num_start_tokens", "is_replayed"), [(MAX_OMITTED_TOKENS, True), (MAX_OMITTED_TOKENS + 1, False)]
)
def test_tokens_that_history_leaves_out_are_limited(num_start_tokens: int, *, is_replayed: bool) -> None:
    model_format, history = CharacterFormat(num_start_tokens), PromptTokenCache()
    history.add_turn(add_spaced_answer(history, model_format, "a", Q))
    start = chr(START) * num_start_tokens
    expected = f"q|{start} a |r|{start}" if is_replayed else f"q|a|r|{start}"
    assert read_following(history, model_format, Q, A, R) == expected


def test_longest_turn_is_replayed_whenever_it_was_added() -> None:
    model_format = CharacterFormat()
    for order in (1, -1):
        history = PromptTokenCache()
        first = add_spaced_answer(history, model_format, "a", Q)
        second = add_spaced_answer(history, model_format, "b", Q, A, R)
        for turn in (first, second)[::order]:
            history.add_turn(turn)
        following = read_following(history, model_format, Q, A, R, InputMessage(role="assistant", content="b"))
        assert following == "q|a|r|\x01 b |\x01", "the second turn was rendered before the first one was known"


def test_latest_of_two_equal_turns_is_replayed() -> None:
    model_format, history = CharacterFormat(), PromptTokenCache()
    turn = add_spaced_answer(history, model_format, "a", Q)
    history.add_turn(turn)
    history.add_turn(msgspec.structs.replace(turn, generated_tokens=(*map(ord, "a  "), END)))
    assert read_following(history, model_format, Q, A, R) == "q|\x01a  |r|\x01"


@pytest.mark.parametrize("output", [(), say("")])
def test_turn_that_left_nothing_in_the_history_is_not_replayed(output: tuple[Message, ...]) -> None:
    model_format, history = CharacterFormat(), PromptTokenCache()
    turn = add_spaced_answer(history, model_format, "", Q)
    history.add_turn(msgspec.structs.replace(turn, output=output))
    empty = [InputMessage(role="assistant", content="")] if output else []
    assert read_following(history, model_format, Q, *empty, R) == ("q||r|\x01" if output else "q|r|\x01")
    assert read_following(history, model_format, Q) == "q|\x01"


def test_turn_without_output_or_without_a_message_end_is_not_remembered() -> None:
    history, without_ends = PromptTokenCache(), CharacterFormat(end_of_message=())
    for model_format, tokens in [(CharacterFormat(), ()), (without_ends, (ord("a"), END))]:
        prompt = render_prompt(history, cast("Any", model_format), Q)
        history.add_turn(FinishedTurn(prompt, tokens, say("a")))
        assert history.num_tokens == len(history.turns) == 0


def test_pictures_are_found_again_after_generated_tokens() -> None:
    """The picture of a later turn moves when an earlier answer has more tokens than its rendering."""
    model = IMAGE_MODELS[1]
    model_format, images, history = load_image_model(model), list_pictures(model), PromptTokenCache()
    question = InputMessage(role="user", content=(picture(3), InputText(text="What is it?")))
    answer = (Message(id="msg_1", status="completed", content=(OutputText(text="A\n\ncat."),)),)

    def render(*items: AnyInput) -> TurnPrompt:
        return history.render(model_format, "me", PromptInput(items=items, images=images), NOW)

    first = render(question)
    generated = tuple(token for text in ("A", "\n", "\n", "cat.<|im_end|>") for token in model_format.encode(text))
    history.add_turn(FinishedTurn(first, generated, answer))
    said = InputMessage(role="assistant", content="A\n\ncat.")
    second = render(question, said, InputMessage(role="user", content=(InputText(text="And this?"), picture(2))))
    prompt = second.prompt
    assert prompt.tokens[: len(first.prompt.tokens) + len(generated)] == first.prompt.tokens + generated
    assert len(prompt.tokens) == len(second.rendered_tokens) + 1
    soft_id = model_format.encode(model.soft)[0]
    assert [(span.rows, prompt.tokens[span.offset : span.offset + span.length]) for span in prompt.media] == [
        (rows, (soft_id,) * rows) for rows in (3, 2)
    ]
    assert prompt.media[0] == first.prompt.media[0]


def test_generated_token_of_a_picture_is_not_restored() -> None:
    """An engine on another server may generate one. The next prompt would have a picture too many."""
    model_format, history = load_image_model(IMAGE_MODELS[1]), PromptTokenCache()
    first = render_prompt(history, model_format, QUESTION)
    text = f"Two.{IMAGE_MODELS[1].soft}"
    items = (Message(id="msg_1", status="completed", content=(OutputText(text=text),)),)
    history.add_turn(FinishedTurn(first, tuple(model_format.encode(f"{text}<|im_end|>")), items))
    said = InputMessage(role="assistant", content=text)
    second = render_prompt(history, model_format, QUESTION, said, QUESTION)
    assert model_format.encode(IMAGE_MODELS[1].soft)[0] not in second.prompt.tokens


@pytest.mark.parametrize(("count", "kept"), [(100, 100), (8, 8), (7, 5), (6, 5), (5, 5), (2, 2), (1, 0)])
def test_picture_leaves_a_shortened_prompt_as_a_whole(count: int, kept: int) -> None:
    """Ten tokens, of which 2 to 4 and 8 to 9 stand for pictures."""
    model_format = load_image_model(IMAGE_MODELS[1])
    soft_id = model_format.encode(IMAGE_MODELS[1].soft)[0]
    tokens = tuple(soft_id if index in (2, 3, 4, 8, 9) else 40 + index for index in range(10))
    spans = find_spans(tokens, [ImageSpan(key=b"k", offset=0, length=n, rows=n, soft_id=soft_id) for n in (3, 2)])
    whole = TurnPrompt(
        format=model_format,
        owner="me",
        prompt_input=PromptInput(),
        now=NOW,
        rendered_tokens=tokens,
        prompt=RenderedPrompt(tokens, "", media=spans),
    )
    if not kept:
        with pytest.raises(ApiError, match="inside of an image"):
            _keep_last_tokens(whole, count)
        return
    prompt = _keep_last_tokens(whole, count).prompt
    assert prompt.tokens == tokens[-kept:]
    for span in prompt.media:
        assert set(prompt.tokens[span.offset : span.end]) == {soft_id}
    assert sum(span.rows for span in prompt.media) == prompt.tokens.count(soft_id)
