"""Prompts and outputs without a chat template and a dialect: every character of the text counts, and none is a marker.

A raw prompt is the whole frame that the model reads, so special tokens inside it become control tokens, as they would
in the model's own training data. Only the two texts of a fill-in-the-middle prompt are escaped: there, the frame is
written by this server.
"""

import re
from collections.abc import Sequence
from functools import cached_property

from msgspec import Struct

from antiphon.events.items import Logprob
from antiphon.harmony.grammar import GrammarBuilder, OutputConstraint
from antiphon.harmony.rendered_prompt import RenderedPrompt, RenderError
from antiphon.harmony.tokens.detokenizer import CONTROL_RANGE, Detokenizer, MarkerAlphabet, TokenVocabulary
from antiphon.harmony.tokens.special_tokens import SpecialTokenEscaper, SpecialTokens
from antiphon.harmony.tools import UnofferedCall
from antiphon.state.segments import Say, Segment

INFILL_LAYOUTS = (
    ("<|fim_prefix|>{prefix}<|fim_suffix|>{suffix}<|fim_middle|>", ("<|endoftext|>", "<|file_sep|>")),
    ("<fim_prefix>{prefix}<fim_suffix>{suffix}<fim_middle>", ("<|endoftext|>", "<file_sep>")),
    ("<fim-prefix>{prefix}<fim-suffix>{suffix}<fim-middle>", ("<|endoftext|>",)),
    ("\u2581<PRE>{prefix}\u2581<SUF>{suffix}\u2581<MID>", ("\u2581<EOT>",)),
    ("<PRE>{prefix}<SUF>{suffix}<MID>", ("<EOT>",)),
    (
        "<\uff5cfim\u2581begin\uff5c>{prefix}<\uff5cfim\u2581hole\uff5c>{suffix}<\uff5cfim\u2581end\uff5c>",
        ("<\uff5cend\u2581of\u2581sentence\uff5c>",),
    ),
    ("[SUFFIX]{suffix}[PREFIX]{prefix}", ()),
)
"""Layouts of fill-in-the-middle prompts, each with the tokens that end the middle. A vocabulary has the first layout
whose markers are all tokens of it."""
_CONTROL_MARKS = re.compile(f"[{CONTROL_RANGE}]")


class RawPrompt(Struct, frozen=True, kw_only=True):
    """A prompt that is no conversation: text, or token ids."""

    source: str | tuple[int, ...]
    suffix: str | None = None
    """Text after the output, for models with fill-in-the-middle tokens."""
    add_special_tokens: bool = True
    """True if text gets the tokens that the tokenizer itself adds, such as BOS."""
    max_tokens: int | None = None
    """Number of tokens to keep, counted from the end; None for all."""
    locate_tokens: bool = False
    """True if the rendered prompt tells where each token begins in its text."""


class InfillLayout(Struct, frozen=True):
    """Layout of a fill-in-the-middle prompt in one vocabulary. `parts` are token ids and the names of the two texts."""

    parts: tuple[int | str, ...]
    end_ids: tuple[int, ...]
    """Tokens that end the middle."""


class PassthroughReader:
    """Reader of an output as text, with the offset of each token. Implements `OutputReader`."""

    reasoning_tokens = 0
    call_failed = False

    def __init__(self, alphabet: MarkerAlphabet) -> None:
        self.unoffered_calls: list[UnofferedCall] = []
        self._alphabet, self._detokenizer = alphabet, Detokenizer(alphabet)
        self._decoded_length = self._num_marks = 0
        self._offsets: list[int] = []

    def feed(self, tokens: Sequence[int], logprobs: Sequence[Logprob | None] = ()) -> list[Segment]:  # noqa: ARG002 - offsets take the place of placed log-probabilities
        """Returns the characters that are now complete. Control tokens have no text."""
        decoded, starts = self._detokenizer.feed(tokens)
        marks = [match.start() + self._decoded_length for match in _CONTROL_MARKS.finditer(decoded)]
        self._offsets += [
            start - self._num_marks - sum(mark < start for mark in marks) if marks else start - self._num_marks
            for start in starts
        ]
        self._decoded_length += len(decoded)
        self._num_marks += len(marks)
        return self._say(decoded)

    def finish(self, *, natural: bool) -> list[Segment]:  # noqa: ARG002 - text ends in the same way in both cases
        """Returns a replacement character for an incomplete character."""
        return self._say(self._detokenizer.finish())

    def take_offsets(self) -> list[int]:
        """Returns the offset in the text of each token fed since the last call: that of its first character.

        A token that only completes a character has the offset of that character.
        """
        offsets, self._offsets = self._offsets, []
        return offsets

    def _say(self, decoded: str) -> list[Segment]:
        text = self._alphabet.original_text(decoded)
        return [Say(text)] if text else []


class Passthrough:
    """Raw prompts and outputs in one vocabulary."""

    def __init__(self, vocabulary: TokenVocabulary) -> None:
        self.control_ids = frozenset(vocabulary.special_ids)
        """Ids of tokens that are no text, such as the end of a message."""
        self.vocabulary = vocabulary

    def render_prompt(self, prompt: RawPrompt) -> RenderedPrompt:
        """Returns the tokens of a prompt. Raises `RenderError`."""
        before, body, after = self._encode_prompt(prompt)
        text = prompt.source if isinstance(prompt.source, str) else self._decode(body)
        if prompt.max_tokens is not None and len(before) + len(body) + len(after) > prompt.max_tokens:
            kept = prompt.max_tokens - len(before) - len(after)
            if kept > 0:
                body = body[-kept:]
            else:
                before, body, after = (), (*before, *body, *after)[-prompt.max_tokens :], ()
            text = self._decode(body)
        tokens = (*before, *body, *after)
        if not tokens:
            raise RenderError("The prompt must have at least one token.", "prompt")
        if not prompt.locate_tokens:
            return RenderedPrompt(tokens, text)
        offsets = (*(0 for _ in before), *self._locate_tokens(body, text), *(len(text) for _ in after))
        return RenderedPrompt(tokens, text, offsets=offsets)

    def create_reader(self, *, keep_special_tokens: bool = False) -> PassthroughReader:
        """Returns a reader of one output. `keep_special_tokens`: control tokens are part of the text."""
        return PassthroughReader(self._spelling_alphabet if keep_special_tokens else self._plain_alphabet)

    def build_grammar(self, constraint: OutputConstraint) -> str:
        """Returns the grammar of outputs that have the form of the constraint."""
        rules = GrammarBuilder(self.vocabulary.added_tokens)
        return rules.build(rules.required_text(constraint))

    @cached_property
    def infill_layout(self) -> InfillLayout | None:
        """Layout of fill-in-the-middle prompts; None if the vocabulary has no tokens for them."""
        ids = self.vocabulary.added_tokens
        for layout, ends in INFILL_LAYOUTS:
            pieces = [piece for piece in re.split(r"\{(\w+)\}", layout) if piece]
            markers = [piece for piece in pieces if piece not in ("prefix", "suffix")]
            if all(marker in ids for marker in markers):
                return InfillLayout(
                    tuple(ids.get(piece, piece) for piece in pieces), tuple(ids[end] for end in ends if end in ids)
                )
        return None

    def _encode_prompt(self, prompt: RawPrompt) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """Returns the ids that the tokenizer adds before the prompt, those of the prompt, and those after it."""
        if not isinstance(prompt.source, str):
            return (), prompt.source, ()
        before, after = self.vocabulary.boundary_ids if prompt.add_special_tokens else ((), ())
        try:
            return before, tuple(self._encode_source(prompt.source, prompt.suffix)), after
        except UnicodeError as error:  # an unpaired surrogate
            raise RenderError("The prompt contains text that is not valid Unicode.", "prompt") from error

    def _encode_source(self, source: str, suffix: str | None) -> list[int]:
        if suffix is None:
            return self.vocabulary.encode(source)
        layout = self.infill_layout
        if layout is None:
            raise RenderError("This model has no fill-in-the-middle tokens.", "suffix")
        escaper, texts = (
            SpecialTokenEscaper(self._special_tokens, (source, suffix)),
            {"prefix": source, "suffix": suffix},
        )
        ids: list[int] = []
        for part in layout.parts:
            if isinstance(part, int):
                ids.append(part)
            else:
                ids += escaper.encode(escaper.escape_text(texts[part]), self.vocabulary.encode)[0]
        return ids

    def _locate_tokens(self, tokens: Sequence[int], text: str) -> list[int]:
        """Returns the offset of each token in a prompt's text."""
        reader = self.create_reader(keep_special_tokens=True)
        segments = [*reader.feed(tokens), *reader.finish(natural=False)]
        decoded = "".join(segment.text for segment in segments if isinstance(segment, Say))
        shift = 1 if decoded == f" {text}" else 0  # SentencePiece begins a text with a space of its own
        return [min(max(offset - shift, 0), len(text)) for offset in reader.take_offsets()]

    def _decode(self, tokens: Sequence[int]) -> str:
        return b"".join(self.vocabulary.token_bytes(token) or b"" for token in tokens).decode("utf-8", "replace")

    @cached_property
    def _special_tokens(self) -> SpecialTokens:
        return SpecialTokens(self.vocabulary.added_tokens)

    @cached_property
    def _plain_alphabet(self) -> MarkerAlphabet:
        return MarkerAlphabet(self.vocabulary, ())

    @cached_property
    def _spelling_alphabet(self) -> MarkerAlphabet:
        return MarkerAlphabet(SpelledVocabulary(self.vocabulary), ())


class SpelledVocabulary:
    """A vocabulary whose control tokens are text."""

    special_ids: frozenset[int] = frozenset()

    def __init__(self, vocabulary: TokenVocabulary) -> None:
        self.added_tokens, self.boundary_ids = vocabulary.added_tokens, vocabulary.boundary_ids
        self.token_bytes, self.encode = vocabulary.token_bytes, vocabulary.encode
