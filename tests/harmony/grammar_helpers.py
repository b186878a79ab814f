"""Checks of text against the grammars of model formats, by llguidance."""

from functools import cache
from typing import Any

from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from antiphon.harmony.format import ModelFormat
from antiphon.harmony.rendered_prompt import RenderedPrompt
from tests.harmony import parser_helpers


class MatcherVocabulary:
    """Token bytes and special ids of a model format, as `llguidance.TokenizerWrapper` expects them."""

    bos_token_id = None

    def __init__(self, model_format: ModelFormat, size: int) -> None:
        self.tokens = [model_format.decode_token(token)[1] for token in range(size)]
        vocabulary: Any = getattr(model_format, "vocabulary", None)
        self.special_token_ids = sorted(vocabulary.special_ids) if vocabulary else list(range(199_998, size))
        self.eos_token_id = (*model_format.stop_ids, *model_format.encode("<|im_end|>"))[0]

    def __call__(self, text: str | bytes) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


@cache
def load_llg_tokenizer(name: str, byte_markers: bool = False) -> LLTokenizer:
    model_format = parser_helpers.load_byte_format(name) if byte_markers else parser_helpers.load_token_format(name)
    size = 201_088 if name == "gpt-oss" else 258 if byte_markers else 265
    return LLTokenizer(TokenizerWrapper(MatcherVocabulary(model_format, size)))


def grammar_accepts(
    model_format: ModelFormat, tokenizer: LLTokenizer, text: str, prompt_input: Any, *, thinking: bool = False
) -> bool:
    grammar = model_format.build_grammar(RenderedPrompt((), "", thinking), prompt_input)
    assert grammar is not None
    source = LLMatcher.grammar_from_lark(grammar)
    assert LLMatcher.validate_grammar(source, tokenizer) == ""
    matcher = LLMatcher(tokenizer, source, log_level=0)
    end_tokens = {model_format.stop_ids[0], *model_format.encode("<|im_end|>")} - set(model_format.encode("<|call|>"))
    tokens = model_format.encode(text)
    tokens = tokens[:-1] if tokens and tokens[-1] in end_tokens else tokens
    consumed = matcher.try_consume_tokens(tokens) == len(tokens)
    return bool(consumed and not matcher.is_error() and matcher.is_accepting())
