"""Checks of text against the grammars of model formats, by llguidance."""

from functools import cache
from typing import Any

from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from antiphon.harmony.detection.template_format import TemplateFormat
from antiphon.harmony.format import ModelFormat
from antiphon.harmony.rendered_prompt import RenderedPrompt


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
def load_llg_tokenizer(model_format: ModelFormat) -> LLTokenizer:
    size = 256 + len(model_format.vocabulary.added_tokens) if isinstance(model_format, TemplateFormat) else 201_088
    return LLTokenizer(TokenizerWrapper(MatcherVocabulary(model_format, size)))


def grammar_accepts(
    model_format: ModelFormat, text: str | list[int], prompt_input: Any, *, thinking: bool = False
) -> bool:
    """Returns True if the text, or its tokens, is a whole output under the request's grammar, which must be valid."""
    grammar = model_format.build_grammar(RenderedPrompt((), "", thinking), prompt_input)
    assert grammar is not None
    tokenizer, source = load_llg_tokenizer(model_format), LLMatcher.grammar_from_lark(grammar)
    assert LLMatcher.validate_grammar(source, tokenizer) == "", grammar
    matcher = LLMatcher(tokenizer, source, log_level=0)
    tokens = model_format.encode(text) if isinstance(text, str) else text
    return bool(matcher.try_consume_tokens(tokens) == len(tokens) and not matcher.is_error() and matcher.is_accepting())


def accepts_output(model_format: ModelFormat, text: str, prompt_input: Any, *, thinking: bool = False) -> bool:
    """Returns what `grammar_accepts` does for the text without its end token."""
    end_tokens = {model_format.stop_ids[0], *model_format.encode("<|im_end|>")} - set(model_format.encode("<|call|>"))
    tokens = model_format.encode(text)
    tokens = tokens[:-1] if tokens and tokens[-1] in end_tokens else tokens
    return grammar_accepts(model_format, tokens, prompt_input, thinking=thinking)
