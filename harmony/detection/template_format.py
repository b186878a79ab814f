"""Format of a model whose prompt comes from a chat template and whose output is parsed by a declared dialect."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import cached_property, lru_cache
from itertools import product

import msgspec

from antiphon.harmony import grammar
from antiphon.harmony.calls.builtin.reader import read_builtin_calls
from antiphon.harmony.detection.unread_syntax import find_unread_syntax
from antiphon.harmony.dialect import Dialect, DialectReader
from antiphon.harmony.format import (
    ImageRole,
    OutputReader,
    PromptInput,
    RequestTemplate,
    TemplateOptions,
    VocabularyCodec,
    answer_constraints,
)
from antiphon.harmony.image_tokens import ImageExpander, ImageTokens, PromptImage, can_repeat, find_spans
from antiphon.harmony.passthrough import Passthrough, SpelledVocabulary
from antiphon.harmony.prompt.shown_items import show_items
from antiphon.harmony.prompt.templates.jinja import ChatTemplate
from antiphon.harmony.prompt.templates.template_renderer import TemplateRenderer
from antiphon.harmony.rendered_prompt import ImageSpan, RenderedPrompt, RenderError, UnsupportedOptionError
from antiphon.harmony.tokens import special_tokens
from antiphon.harmony.tokens.detokenizer import MarkerAlphabet, TokenVocabulary
from antiphon.harmony.tokens.encode_cache import CachedEncoder
from antiphon.state.segments import Segment

MAX_REQUEST_TEMPLATES = 4
"""Number of requests' own templates that stay compiled."""


class TemplateFormat(VocabularyCodec):
    """Implements `ModelFormat`.

    `token_names` are the tokenizer's own names for its tokens (`bos_token`, …), which templates use. `tool_template`
    is the template for requests with tools, if the model has two. `image_tokens` stand for pictures, if it sees them.
    """

    def __init__(
        self,
        dialect: Dialect,
        vocabulary: TokenVocabulary,
        template: ChatTemplate,
        token_names: Mapping[str, str] | None = None,
        tool_template: ChatTemplate | None = None,
        image_tokens: ImageTokens | None = None,
    ) -> None:
        self._image_tokens = image_tokens
        self.name = dialect.name
        self.has_reasoning, self.has_calls = dialect.think is not None, bool(dialect.calls)
        self.dialect, self.vocabulary = dialect, vocabulary
        self.passthrough = Passthrough(vocabulary)
        token_names = dict(token_names or {})
        self._alphabet = MarkerAlphabet(vocabulary, dialect.all_markers)
        # Reasoning markers are escaped even if they are not tokens: `find_open_part` searches the prompt for them.
        self._special_tokens = special_tokens.SpecialTokens(
            [*vocabulary.added_tokens, *(marker for pair in dialect.think_markers for marker in pair)]
        )
        self._token_names = token_names
        self.renderer = self._create_renderer(template)
        self._tool_renderer = self._create_renderer(tool_template, for_tools=True) if tool_template else self.renderer
        self._request_renderer = lru_cache(maxsize=MAX_REQUEST_TEMPLATES)(self._create_request_renderer)
        end_texts = (*dialect.stop, token_names.get("eos_token", ""))
        self.stop_ids = tuple(
            dict.fromkeys(vocabulary.added_tokens[text] for text in end_texts if text in vocabulary.added_tokens)
        )
        self.end_ids = self.stop_ids

    @cached_property
    def _encoder(self) -> CachedEncoder:
        vocabulary = self.vocabulary
        end_texts = (text for text, token in vocabulary.added_tokens.items() if token in self.end_ids)
        return CachedEncoder(vocabulary.encode, end_texts, vocabulary.added_tokens)

    @property
    def image_roles(self) -> frozenset[ImageRole]:
        """Roles in which all templates of the model show pictures; empty if they show none of the user."""
        roles = self.renderer.image_shape.roles & self._tool_renderer.image_shape.roles
        return frozenset() if self.image_refusal or "user" not in roles else roles

    @cached_property
    def image_refusal(self) -> str:
        """Why a model that has tokens for pictures shows none, in one line."""
        if self._image_tokens is None:
            return ""
        if not can_repeat(self._image_tokens, self.vocabulary.encode):
            return "its tokenizer does not keep the tokens of an image apart"
        return self.renderer.image_shape.refusal or self._tool_renderer.image_shape.refusal

    def find_images(self, tokens: Sequence[int], spans: Sequence[ImageSpan]) -> tuple[ImageSpan, ...]:
        """Returns where the pictures of these spans are among other ids of the same prompt. Raises `RenderError`."""
        if self._image_tokens is not None:
            soft_id = self._image_tokens.soft_id
            if soft_id in tokens and all(span.soft_id != soft_id for span in spans):
                raise RenderError("The prompt has a token for an image where there is none.")
        return find_spans(tokens, spans)

    def _create_expander(self, renderer: TemplateRenderer) -> ImageExpander:
        placeholder = renderer.image_shape.placeholder
        if self._image_tokens is None or not placeholder:
            raise RenderError("The model's chat template shows no images.")
        return ImageExpander(self._image_tokens, placeholder, self.vocabulary.added_tokens[placeholder])

    def render_prompt(self, prompt_input: PromptInput, *, now: datetime, owner: str = "") -> RenderedPrompt:
        """Renders the conversation as a prompt. Raises `RenderError`."""
        items = show_items(prompt_input.items, prompt_input.tools)
        can_show = bool(prompt_input.images) and (prompt_input.shows_images_as_text or bool(self.image_roles))
        images = prompt_input.images if can_show else {}
        prompt_input = msgspec.structs.replace(prompt_input, items=items, images=images)
        options = prompt_input.template
        offers_tools = len(prompt_input.tools) > 0 and prompt_input.tool_choice != "none"
        renderer = self._tool_renderer if offers_tools else self.renderer
        if options.source is not None:
            renderer = self._request_renderer(options.source, options.compile_source, for_tools=offers_tools)
        if prompt_input.keep_special_tokens and self.dialect.calls:
            message = "The control tokens of this model's dialect are syntax, so they cannot be part of the text."
            raise UnsupportedOptionError(message, "skip_special_tokens")
        try:
            return self._render_with(renderer, prompt_input, now, owner)
        except RenderError as error:
            if options.source is None or error.param is not None:
                raise
            raise _request_template_error(error) from error
        except RecursionError as error:
            raise RenderError("The conversation contains JSON that is nested too deeply.", "input") from error
        except (TypeError, UnicodeError) as error:  # an unpaired surrogate
            raise RenderError("The conversation contains text that is not valid Unicode.", "input") from error

    def _render_with(
        self, renderer: TemplateRenderer, prompt_input: PromptInput, now: datetime, owner: str
    ) -> RenderedPrompt:
        """Renders a prompt with one template, and puts the pictures into it."""
        texts = [*_client_texts(prompt_input), renderer.source]
        escaper = special_tokens.SpecialTokenEscaper(self._special_tokens, texts)
        rendered, images = renderer.render(prompt_input, escaper, now)
        options = prompt_input.template
        if prompt_input.shows_images_as_text:
            return self._split_at_images(rendered, images, escaper, options)
        expander = self._create_expander(renderer) if prompt_input.images else None
        full, short, lengths = expander.replace_placeholders(rendered, images) if expander else (rendered, rendered, [])
        ids, text = escaper.encode(short, lambda text: self._encoder.encode(text, owner))
        if expander:
            ids, text = expander.repeat_soft_ids(ids, lengths), full.replace(escaper.sentinel, "")
        elif self._image_tokens is not None and self._image_tokens.soft_id in ids:
            raise RenderError("The model's chat template writes a token for an image where there is none.")
        before, after = self.vocabulary.boundary_ids if options.add_special_tokens else ((), ())
        tokens = (*before, *ids, *after)
        media = expander.find_images(tokens, images) if expander else ()
        return self._mark_end(RenderedPrompt(tokens, text, media=media), rendered, options)

    def _split_at_images(
        self,
        rendered: str,
        images: Sequence[PromptImage],
        escaper: special_tokens.SpecialTokenEscaper,
        options: TemplateOptions,
    ) -> RenderedPrompt:
        """Returns a prompt as texts between pictures. Raises `RenderError` if a client's text would be read as tokens.

        An engine that takes text finds control tokens anywhere in it, also in the text of a client.
        """
        pieces = rendered.split(escaper.image_mark)
        if len(pieces) - 1 != len(images):
            raise RenderError(f"The model's chat template shows {len(pieces) - 1} of {len(images)} images.")
        texts = tuple(piece.replace(escaper.sentinel, "") for piece in pieces)
        added = frozenset(self.vocabulary.added_tokens.values())
        tokens, media = list[int](), list[ImageSpan]()
        for index, (piece, text) in enumerate(zip(pieces, texts, strict=True)):
            ids, escaped = self.vocabulary.encode(text), escaper.encode(piece, self.vocabulary.encode)[0]
            if [token for token in ids if token in added] != [token for token in escaped if token in added]:
                message = "With images, this model's engine takes no text that contains the model's control tokens."
                raise RenderError(message, "input")
            tokens += ids
            if index < len(images):
                image = images[index]
                media.append(ImageSpan(key=image.key, offset=len(tokens), length=0, rows=image.rows, grid=image.grid))
        prompt = RenderedPrompt(tuple(tokens), "".join(texts), media=tuple(media), texts=texts)
        return self._mark_end(prompt, rendered, options)

    def _create_renderer(self, template: RequestTemplate, *, for_tools: bool = False) -> TemplateRenderer:
        return TemplateRenderer(
            self.dialect,
            template,
            self._token_names,
            self._special_tokens,
            for_tools=for_tools,
            image_tokens=self._image_tokens,
        )

    def _create_request_renderer(
        self, source: str, compile_source: Callable[[str], RequestTemplate] | None, *, for_tools: bool
    ) -> TemplateRenderer:
        """Returns the renderer of a request's own template."""
        try:
            template = (compile_source or ChatTemplate)(source)
        except RenderError as error:
            raise _request_template_error(error) from error
        return self._create_renderer(template, for_tools=for_tools)

    def _mark_end(self, prompt: RenderedPrompt, rendered: str, options: TemplateOptions) -> RenderedPrompt:
        """Returns the prompt with the part of an answer inside which it ends."""
        added, special_ids = self.vocabulary.added_tokens, self.vocabulary.special_ids
        end = self.dialect.find_open_part(rendered, (text for text, token in added.items() if token in special_ids))
        return msgspec.structs.replace(
            prompt,
            in_reasoning=not options.continue_final_message and end == "reasoning",
            in_text=options.continue_final_message,
            in_wrapper=end == "answer",
        )

    def create_reader(self, prompt: RenderedPrompt, prompt_input: PromptInput) -> OutputReader:
        """Returns a reader for the output that follows this prompt."""
        alphabet = self._spelling_alphabet if prompt_input.keep_special_tokens else self._alphabet
        reader = DialectReader(
            self.dialect,
            alphabet,
            prompt_input,
            in_reasoning=prompt.in_reasoning,
            in_text=prompt.in_text,
            in_wrapper=prompt.in_wrapper,
        )
        return read_builtin_calls(reader, prompt_input)

    @cached_property
    def _spelling_alphabet(self) -> MarkerAlphabet:
        """Alphabet in which control tokens are text, except for the markers of the dialect."""
        return MarkerAlphabet(SpelledVocabulary(self.vocabulary), self.dialect.all_markers)

    @cached_property
    def unread_syntax(self) -> str:
        """Calls and reasoning of the template that the dialect does not read, in one line; empty if it reads all."""

        def read(text: str, prompt_input: PromptInput) -> Sequence[Segment]:
            reader = DialectReader(self.dialect, self._alphabet, prompt_input, in_reasoning=False)
            return [*reader.feed(self.encode(text)), *reader.finish(natural=True)]

        return find_unread_syntax(self.dialect, self._tool_renderer, read)

    def build_grammar(self, prompt: RenderedPrompt, prompt_input: PromptInput) -> str | None:
        """Returns a grammar of all parsable answers to this prompt.

        Returns None if a call is required and the dialect has no grammar for one.
        """
        rules = grammar.GrammarBuilder(self.vocabulary.added_tokens)
        calls: dict[str, list[str]] = {}
        for call_format, tool in product(self.dialect.calls, prompt_input.callable_tools):
            if prompt.in_text and call_format.head_only:
                continue  # its calls would be at the start of the text, which the prompt has begun
            if rule := call_format.grammar_rule(tool, rules):
                calls.setdefault(call_format.openers[0], []).append(rule)
        constraints = answer_constraints(prompt_input)
        if constraints.call_required and not calls:
            return None
        think: tuple[str, ...] | None = None
        may_think = prompt.in_reasoning or (prompt_input.effort != "none" and not prompt.in_text)
        if self.dialect.think is not None and may_think:
            think = tuple(filter(None, (*self.dialect.think, self.dialect.message_opener)))
        head_only_openers = frozenset(
            opener for call_format in self.dialect.calls if call_format.head_only for opener in call_format.openers
        )
        return grammar.build_turn_grammar(
            rules,
            think,
            calls,
            self._text_stops(),
            thinking=prompt.in_reasoning,
            constraints=constraints,
            head_only_openers=head_only_openers,
            wrapper=self.dialect.answer,
        )

    def _text_stops(self) -> list[str]:
        """Returns the texts that plain text must not contain, because they would be parsed as markers."""
        openers = (
            opener for call_format in self.dialect.calls if not call_format.head_only for opener in call_format.openers
        )
        reasoning_markers = (marker for pair in self.dialect.think_markers for marker in pair)
        return list(dict.fromkeys([*reasoning_markers, *openers]))


def _request_template_error(error: RenderError) -> RenderError:
    """Returns the error of a template of the model as that of a template of the request."""
    return RenderError(error.message.replace("The model's", "The request's"), "chat_template")


def _client_texts(conversation: PromptInput) -> list[str]:
    """Returns every text from the client that may appear in the prompt."""
    tools = [msgspec.to_builtins(tool) for tool in conversation.tools]
    return [
        conversation.instructions or "",
        *special_tokens.collect_strings([msgspec.to_builtins(conversation.items), tools]),
        *special_tokens.collect_strings([dict(conversation.template.variables), list(conversation.template.documents)]),
    ]
