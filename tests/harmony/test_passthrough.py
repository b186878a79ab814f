"""Raw prompts and outputs: the tokenizer's own tokens, truncation, fill-in-the-middle, offsets, and constrained forms."""

import pytest
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from antiphon.harmony.detection.detect import bytes_format
from antiphon.harmony.grammar import OutputConstraint
from antiphon.harmony.passthrough import INFILL_LAYOUTS, Passthrough, RawPrompt
from antiphon.harmony.rendered_prompt import RenderedPrompt, RenderError
from antiphon.harmony.tokens.vocabulary import ByteVocabulary, TokenizerVocabulary
from antiphon.state.segments import Say
from tests.harmony.grammar_helpers import MatcherVocabulary

MARKERS = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<think>")
INFILL_VOCABULARY = ByteVocabulary(MARKERS, ("<|endoftext|>", *MARKERS[:3]))
PLAIN_VOCABULARY = ByteVocabulary(("<think>",), ("<|im_end|>",))
IM_END = PLAIN_VOCABULARY.added_tokens["<|im_end|>"]


def byte_tokenizer(*, adds_bos: bool, adds_eos: bool = False) -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    if adds_bos:
        template = "<s> $A </s>" if adds_eos else "<s> $A"
        names = [("<s>", 256), ("</s>", 257)]
        tokenizer.post_processor = processors.TemplateProcessing(single=template, special_tokens=names)
    return tokenizer


def render(passthrough: Passthrough, source: str | tuple[int, ...], **options: object) -> RenderedPrompt:
    return passthrough.render_prompt(RawPrompt(source=source, **options))  # type: ignore[arg-type]


@pytest.mark.parametrize("adds_eos", [False, True])
def test_tokens_of_the_tokenizer_itself_are_added_unless_turned_off(adds_eos: bool) -> None:
    tokenizer = byte_tokenizer(adds_bos=True, adds_eos=adds_eos)
    passthrough = Passthrough(TokenizerVocabulary(tokenizer))
    assert list(render(passthrough, "Hello").tokens) == tokenizer.encode("Hello").ids
    assert render(passthrough, "Hello").tokens[0] == 256 and render(passthrough, "Hello").text == "Hello"
    assert list(render(passthrough, "Hello", add_special_tokens=False).tokens) == tokenizer.encode("Hello").ids[1:6]
    assert render(passthrough, (1, 2)).tokens == (1, 2), "token ids are the whole prompt"
    assert render(passthrough, "").tokens == ((256, 257) if adds_eos else (256,))


def test_tokenizer_without_tokens_of_its_own_adds_none() -> None:
    tokenizer = byte_tokenizer(adds_bos=False)
    vocabulary = TokenizerVocabulary(tokenizer)
    assert vocabulary.boundary_ids == ((), ())
    assert list(render(Passthrough(vocabulary), "Hello").tokens) == tokenizer.encode("Hello").ids


def test_empty_prompt_is_refused() -> None:
    with pytest.raises(RenderError) as caught:
        render(Passthrough(PLAIN_VOCABULARY), "")
    assert caught.value.param == "prompt"


def test_special_tokens_in_a_prompt_count() -> None:
    assert render(Passthrough(PLAIN_VOCABULARY), "a<|im_end|>b").tokens == (97, IM_END, 98)


@pytest.mark.parametrize(
    ("kept", "expected"), [(9, (256, 72, 105, 33)), (4, (256, 72, 105, 33)), (3, (256, 105, 33)), (1, (33,))]
)
def test_truncation_keeps_the_end_and_the_tokenizers_tokens(kept: int, expected: tuple[int, ...]) -> None:
    tokenizer = byte_tokenizer(adds_bos=True)
    vocabulary = TokenizerVocabulary(tokenizer)
    ids = {letter: tokenizer.encode(letter, add_special_tokens=False).ids[0] for letter in "Hi!"}
    expected = tuple(ids.get(chr(token), token) for token in expected)
    prompt = render(Passthrough(vocabulary), "Hi!", max_tokens=kept)
    assert prompt.tokens == expected
    assert prompt.text == "Hi!"[-(len(expected) - (expected[0] == 256)) :]


@pytest.mark.parametrize("source", ["Hé 😀!", "a<|im_end|>b", " x"])
def test_each_token_of_a_prompt_is_located(source: str) -> None:
    prompt = render(Passthrough(PLAIN_VOCABULARY), source, locate_tokens=True)
    assert prompt.text == source and len(prompt.offsets) == len(prompt.tokens)
    starts = {offset: token for token, offset in reversed(list(zip(prompt.tokens, prompt.offsets, strict=True)))}
    for offset, token in starts.items():
        data = PLAIN_VOCABULARY.token_bytes(token)
        assert data is not None and source[offset:].encode().startswith(data)


def test_tokens_that_the_tokenizer_adds_have_no_text() -> None:
    vocabulary = TokenizerVocabulary(byte_tokenizer(adds_bos=True, adds_eos=True))
    prompt = render(Passthrough(vocabulary), "Hi", locate_tokens=True)
    assert (prompt.text, prompt.offsets) == ("Hi", (0, 0, 1, 2))


def test_fill_in_the_middle_prompt_cannot_be_broken_by_its_texts() -> None:
    ids = INFILL_VOCABULARY.added_tokens
    prompt = render(Passthrough(INFILL_VOCABULARY), "a<|fim_middle|>", suffix="<|fim_suffix|>b")
    markers = [token for token in prompt.tokens if token >= 256]
    assert markers == [ids["<|fim_prefix|>"], ids["<|fim_suffix|>"], ids["<|fim_middle|>"]]
    assert bytes(token for token in prompt.tokens if token < 256) == b"a<|fim_middle|><|fim_suffix|>b"
    layout = Passthrough(INFILL_VOCABULARY).infill_layout
    assert layout is not None and layout.end_ids == (ids["<|endoftext|>"],)


@pytest.mark.parametrize(("layout", "ends"), INFILL_LAYOUTS, ids=lambda value: str(value)[:20])
def test_every_layout_is_found_by_its_markers(layout: str, ends: tuple[str, ...]) -> None:
    markers = [part for part in layout.replace("{prefix}", "\n").replace("{suffix}", "\n").split("\n") if part]
    vocabulary = ByteVocabulary(markers, ends)
    tokens = render(Passthrough(vocabulary), "P", suffix="S").tokens
    written = b"".join(vocabulary.token_bytes(token) or b"" for token in tokens).decode()
    assert written == layout.format(prefix="P", suffix="S")
    assert Passthrough(ByteVocabulary(markers[1:], ())).infill_layout is None


def test_suffix_is_refused_without_fill_in_the_middle_tokens() -> None:
    with pytest.raises(RenderError) as caught:
        render(Passthrough(PLAIN_VOCABULARY), "a", suffix="b")
    assert caught.value.param == "suffix"


@pytest.mark.parametrize("size", [1, 2, 3, 50])
@pytest.mark.parametrize("keep", [False, True])
def test_output_is_the_same_for_every_chunking(size: int, keep: bool) -> None:
    output = "<think>é</think> 😀\n<|im_end|> x\n"
    tokens = [*PLAIN_VOCABULARY.encode(output), 0xF0, 0x9F]  # it ends inside a character
    reader = Passthrough(PLAIN_VOCABULARY).create_reader(keep_special_tokens=keep)
    segments = [part for start in range(0, len(tokens), size) for part in reader.feed(tokens[start : start + size])]
    segments += reader.finish(natural=False)
    text = "".join(part.text for part in segments if isinstance(part, Say))
    assert text == (output if keep else output.replace("<|im_end|>", "")) + "�"
    offsets = reader.take_offsets()
    assert offsets == sorted(offsets) and len(offsets) == len(tokens) and reader.take_offsets() == []
    for token, offset in zip(tokens, offsets, strict=True):
        if token < 128:
            assert text[offset] == chr(token)


@pytest.mark.parametrize(
    ("constraint", "accepted", "refused"),
    [
        (OutputConstraint(choice=("yes", "no")), "yes", "maybe"),
        (OutputConstraint(regex="[0-9]+/[0-9]+"), "12/7", "12"),
        (OutputConstraint(lark='start: "a" "b"+'), "abb", "a"),
        (
            OutputConstraint(schema={"type": "object", "properties": {"a": {"type": "integer"}}}),
            '{"a": 1}',
            '{"a": "x"}',
        ),
    ],
)
def test_required_form_is_a_grammar(constraint: OutputConstraint, accepted: str, refused: str) -> None:
    model_format = bytes_format("plain")
    grammar = model_format.passthrough.build_grammar(constraint)
    tokenizer = LLTokenizer(TokenizerWrapper(MatcherVocabulary(model_format, 300)))
    for text, is_accepted in ((accepted, True), (refused, False)):
        matcher = LLMatcher(tokenizer, grammar)
        assert not matcher.is_error(), matcher.get_error()
        is_whole = matcher.try_consume_tokens(model_format.encode(text)) == len(text) and matcher.is_accepting()
        assert is_whole is is_accepted
