"""Renders a conversation with a chat template, in the shape that the template takes."""

import contextlib
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from antiphon.events.inputs import InputMessage
from antiphon.harmony.dialect import Dialect
from antiphon.harmony.format import PromptInput, RequestTemplate, TemplateOptions
from antiphon.harmony.image_tokens import ImageTokens, PromptImage
from antiphon.harmony.prompt import request_options, tool_instructions
from antiphon.harmony.prompt.call_arguments import read_arguments
from antiphon.harmony.prompt.image_messages import TEXT_SHAPE, ImageMarks, ImageSearch, ImageShape
from antiphon.harmony.prompt.message_shape import PARAGRAPH_BREAK, ChatMessage, MessageShape, apply_shape
from antiphon.harmony.prompt.messages import MessageBuilder
from antiphon.harmony.prompt.templates.jinja import RefusedError
from antiphon.harmony.prompt.templates.probe import ShapeSearch
from antiphon.harmony.rendered_prompt import RenderError
from antiphon.harmony.tokens.special_tokens import SpecialTokenEscaper, SpecialTokens
from antiphon.harmony.tools import ToolCall, ToolTable

_NO_OPTIONS = TemplateOptions()
_NO_IMAGES = ImageShape()
PROBE_TIME = datetime(2026, 1, 1)  # noqa: DTZ001 - prompts hold a date without a time zone


class ShapeVariant(Struct, frozen=True, kw_only=True):
    """Change of a shape for one conversation."""

    wraps_arguments: bool = False
    """Wraps arguments that are not an object in one."""
    joins_users: bool = False
    """Joins adjacent user messages."""
    joins_calls: bool = False
    """Keeps a message's text and its calls together."""
    answers_outputs: bool = False
    """Puts an empty message of the assistant between outputs and a message of the user with their pictures."""


VARIANTS = tuple(
    ShapeVariant(wraps_arguments=wraps, joins_users=users, joins_calls=calls)
    for calls in (False, True)
    for users in (False, True)
    for wraps in (False, True)
)
"""Variants to try in order. Some templates refuse arguments that are not an object, others two messages of one role in
a row. One bad call, or one agent that writes as the user, must not make a conversation unusable."""


class TemplateRenderer:
    """Renders conversations with one template. `for_tools`: it is used only where there are tools."""

    def __init__(
        self,
        dialect: Dialect,
        template: RequestTemplate,
        token_names: Mapping[str, str],
        tokens: SpecialTokens,
        *,
        for_tools: bool = False,
        image_tokens: ImageTokens | None = None,
    ) -> None:
        self._image_tokens = image_tokens
        self.source = template.source
        self._dialect, self._template, self._token_names, self._tokens = dialect, template, token_names, tokens
        self._for_tools = for_tools
        self._has_custom_tools = "custom" in template.source
        self._effort_variables: dict[str, Mapping[str, Any]] = {}

    @cached_property
    def shape(self) -> MessageShape:
        """Shape that the template takes, found by rendering small conversations."""
        try:
            search = ShapeSearch(
                self.render_probe,
                self._dialect.think_markers,
                has_tools=self._for_tools,
                names_tool_role=any(f"{quote}tool{quote}" in self.source for quote in "'\""),
            )
            return search.find_shape()
        except RenderError:  # a limit on the template's work
            return MessageShape()

    @cached_property
    def image_shape(self) -> ImageShape:
        """How the template takes pictures, found by rendering small conversations."""
        if self._image_tokens is None:
            return ImageShape()
        search = ImageSearch(
            self._render_image_probe, self._image_tokens, self._tokens.texts, has_tools=self._for_tools
        )
        try:
            return search.find_shape()
        except RenderError as error:  # a limit on the template's work
            return ImageShape(refusal=error.message)

    def _render_image_probe(self, conversation: PromptInput, image_shape: ImageShape) -> str | None:
        escaper = SpecialTokenEscaper(self._tokens, [self.source])
        try:
            rendered, _ = self._render_variants(conversation, escaper, PROBE_TIME, {}, image_shape)
        except RefusedError:
            return None
        return rendered.replace(escaper.sentinel, "")

    def render_probe(self, conversation: PromptInput, shape: MessageShape) -> str | None:
        """Renders a small conversation in a shape. Returns None if the template refuses it."""
        efforts = self._list_effort_variables(conversation.effort) if conversation.effort else [{}]
        texts = (self._render_probe(conversation, shape, variables) for variables in efforts)
        return next((text for text in texts if text is not None), None)

    def _render_probe(self, conversation: PromptInput, shape: MessageShape, variables: Mapping[str, Any]) -> str | None:
        escaper = SpecialTokenEscaper(self._tokens, [self.source])
        context, _ = self._build_context(conversation, escaper, shape, ShapeVariant(), _NO_IMAGES)
        try:
            return self._template.render({**context, **variables}, now=PROBE_TIME).replace(escaper.sentinel, "")
        except RefusedError:
            return None

    def render(
        self, conversation: PromptInput, escaper: SpecialTokenEscaper, now: datetime
    ) -> tuple[str, tuple[PromptImage, ...]]:
        """Renders the first variant that the template accepts. Raises `RenderError` if it refuses all.

        Returns the text, and the pictures in the order of their placeholders.
        """
        options = conversation.template
        variables = {**self._find_effort_variables(conversation.effort), **self._read_options(options, escaper)}
        image_shape = _NO_IMAGES
        if conversation.images:
            image_shape = TEXT_SHAPE if conversation.shows_images_as_text else self.image_shape
        rendered, images = self._render_variants(conversation, escaper, now, variables, image_shape)
        return request_options.cut_at_mark(rendered, escaper) if options.continue_final_message else rendered, images

    def _read_options(self, options: TemplateOptions, escaper: SpecialTokenEscaper) -> dict[str, Any]:
        """Returns the variables that the request sets. Raises `UnsupportedOptionError`."""
        if options == _NO_OPTIONS:
            return {}
        request_options.check_options(options, self._readable)
        return request_options.build_variables(options, escaper, self._readable, self._template.constants)

    @cached_property
    def _readable(self) -> frozenset[str] | None:
        """Variables that the template reads and a request may set; None if they are not known."""
        names = self._template.variables
        return None if names is None else names - self._token_names.keys()

    def _render_variants(
        self,
        conversation: PromptInput,
        escaper: SpecialTokenEscaper,
        now: datetime,
        variables: Mapping[str, Any],
        image_shape: ImageShape,
    ) -> tuple[str, tuple[PromptImage, ...]]:
        variants = [variant for variant in VARIANTS if self.shape.separate_calls or not variant.joins_calls]
        if image_shape.roles and "tool" not in image_shape.roles:
            variants += [replace(variant, answers_outputs=True) for variant in variants]
        for variant in variants[:-1]:
            with contextlib.suppress(RefusedError):
                context, images = self._build_context(conversation, escaper, self.shape, variant, image_shape)
                return self._template.render({**context, **variables}, now=now), images
        context, images = self._build_context(conversation, escaper, self.shape, variants[-1], image_shape)
        return self._template.render({**context, **variables}, now=now), images

    def _find_effort_variables(self, effort: str | None) -> Mapping[str, Any]:
        """Returns the reasoning effort as variables of the template; the nearest one if it refuses the value."""
        if effort is None:
            return {}
        if effort not in self._effort_variables:
            conversation = PromptInput(items=(InputMessage(role="user", content="Hello."),), tools=ToolTable())
            candidates = self._list_effort_variables(effort)
            accepted = (
                variables
                for variables in candidates
                if self._render_probe(conversation, self.shape, variables) is not None
            )
            self._effort_variables[effort] = next(accepted, candidates[0])
        return self._effort_variables[effort]

    def _list_effort_variables(self, effort: str) -> list[Mapping[str, Any]]:
        return list(request_options.list_effort_variables(effort, self._template.variables, self._template.constants))

    def _build_context(
        self,
        conversation: PromptInput,
        escaper: SpecialTokenEscaper,
        shape: MessageShape,
        variant: ShapeVariant,
        image_shape: ImageShape,
    ) -> tuple[dict[str, Any], tuple[PromptImage, ...]]:
        """Returns the template's variables, and the pictures in the order of the messages."""
        marks = ImageMarks(escaper, conversation.images, image_shape.roles, answers_outputs=variant.answers_outputs)
        tools = conversation.tools.listed if conversation.tool_choice != "none" else ToolTable()
        freeform_call = "" if self._has_custom_tools else self._dialect.freeform_call
        builder = MessageBuilder(
            marks,
            conversation.tools,
            freeform_call=freeform_call,
            native_custom_tools=self._has_custom_tools,
            arguments_as_objects=variant.wraps_arguments,
            join_user_messages=variant.joins_users,
            write_calls=self.write_calls if shape.written_calls else None,
            user_outputs=shape.user_outputs,
        )
        instructions = self._write_instructions(tools, escaper, shape, custom=not freeform_call)
        messages = builder.build_messages(conversation, instructions)
        # A tool whose calls could not be parsed is better not offered.
        schemas = (
            tool_instructions.tool_schemas(tools, escaper, custom=not freeform_call, native=self._has_custom_tools)
            if self._dialect.calls
            else []
        )
        variables = _tool_variables(schemas, messages, shape)
        if variant.joins_calls:
            shape = replace(shape, separate_calls=False)
        options = conversation.template
        if options.continue_final_message:
            request_options.mark_final_message(messages, escaper)
        messages = apply_shape(messages, shape, self._dialect.think)
        images = marks.place_images(messages, image_shape.part)
        context = {
            "messages": messages,
            "documents": None,
            "add_generation_prompt": options.add_generation_prompt and not options.continue_final_message,
        }
        return {**self._token_names, **context, **variables}, images

    def _write_instructions(
        self, tools: ToolTable, escaper: SpecialTokenEscaper, shape: MessageShape, *, custom: bool
    ) -> str:
        """Returns the text for the system message that tells what the template does not: tools, raw-text calls."""
        if not self._dialect.calls:
            return ""
        in_words = shape.tools_in == "words"
        texts = (
            tool_instructions.tool_instructions(tools, escaper, self.write_calls, custom=custom) if in_words else "",
            ""
            if custom
            else tool_instructions.freeform_instructions(self._dialect.freeform_instructions, tools, escaper),
        )
        return PARAGRAPH_BREAK.join(filter(None, texts))

    def write_calls(self, calls: Sequence[ToolCall], num_before: int) -> str:
        """Writes calls as the model would: as an example in the tool instructions, and for earlier calls.

        `num_before`: number of calls in the conversation before these.
        """
        native_calls = [
            (tool, arguments if tool.kind == "custom" else _as_json_object(arguments)) for tool, arguments in calls
        ]
        function_calls = [
            (replace(tool, kind="function"), tool_instructions.function_arguments(tool, arguments))
            for tool, arguments in native_calls
        ]
        candidates = (
            call_format.write_calls(variant, num_before)
            for variant in (native_calls, function_calls)
            for call_format in self._dialect.calls
        )
        fallback = "\n".join(f"{tool.model_name}({arguments})" for tool, arguments in native_calls)
        return next((text for text in candidates if text is not None), fallback)


def _tool_variables(schemas: list[dict[str, Any]], messages: list[ChatMessage], shape: MessageShape) -> dict[str, Any]:
    """Returns the template's variables for tools, or puts the tools into the system message."""
    variables: dict[str, Any] = {} if shape.omits_missing_tools else {"tools": None}
    if not schemas or shape.tools_in == "words":
        return variables
    if shape.tools_in == "tools":
        return {"tools": schemas}
    functions = [next(schema[kind] for kind in ("function", "custom") if kind in schema) for schema in schemas]
    if shape.tools_in == "xml_tools":
        return {**variables, "xml_tools": [json.dumps(function, ensure_ascii=False) for function in functions]}
    if not messages or messages[0]["role"] != "system":
        messages.insert(0, {"role": "system", "content": ""})
    messages[0]["tools"] = json.dumps(functions, ensure_ascii=False)
    return variables


def _as_json_object(arguments: str) -> str:
    """Returns the arguments if they are a JSON object, else an object with them as its only member."""
    is_object = read_arguments(arguments) is not None
    return (arguments or "{}") if is_object else json.dumps({"arguments": arguments}, ensure_ascii=False)
