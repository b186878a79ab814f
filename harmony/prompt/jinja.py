"""Chat templates: run as transformers runs them, in the sandbox, within bounds.

A template comes with a model, so it is somebody else's program. The sandbox keeps it from the house's objects; the
bounds here keep it from eating memory and time: turns of loops and calls are counted, and every text it makes on the
way is limited, not only the last one. A deadline is the caller's business, since this module has no clock.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from datetime import datetime
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from antiphon.harmony.format import RenderError

MAX_PROMPT_CHARS = 16_000_000
"""Characters of a prompt, or of anything made on the way to it."""
MAX_LOOP_TURNS = 1_000_000
"""Turns of loops that one rendering may take; a call of a macro or method counts as several."""
_CALL_COST_TURNS = 4
_REFUSED = "The model's chat template refused the conversation: {}"
_WIDE = re.compile(r"[*]|\d{5}")
_turns: ContextVar[list[int]] = ContextVar("turns")


class RefusedError(RenderError):
    """The template would not take the conversation in this shape; in another one it may."""


class ChatTemplate:
    """A compiled chat template."""

    def __init__(self, source: str) -> None:
        self.source = source
        try:
            self._template = _sandbox.from_string(source)
        except (TemplateError, RecursionError, ValueError) as error:
            raise RenderError(f"The model's chat template does not compile: {error}") from error

    def render(
        self,
        context: Mapping[str, Any],
        *,
        now: datetime,
        max_chars: int = MAX_PROMPT_CHARS,
        max_turns: int = MAX_LOOP_TURNS,
    ) -> str:
        """Run the template. Raises `RenderError`, also where the template itself refuses the conversation."""
        left = _turns.set([max_turns])
        try:
            return _join_pieces(self._template.generate(**context, strftime_now=now.strftime), max_chars)
        except RenderError:
            raise
        except Exception as error:  # a template is a program: whatever goes wrong in it, it is the template
            raise RefusedError(_REFUSED.format((str(error) or type(error).__name__)[:300]), "input") from error
        finally:
            _turns.reset(left)


def _join_pieces(pieces: Iterable[str], longest: int) -> str:
    kept, length = [], 0
    for piece in pieces:
        kept.append(piece)
        length += len(piece)
        if length > longest:
            raise RenderError("The prompt is too long.", "input")
    return "".join(kept)


def _spend_turns(turns: int = 1) -> None:
    left = _turns.get(None)
    if left is None:
        return  # while compiling: jinja2 computes constants then
    left[0] -= turns
    if left[0] < 0:
        raise RenderError("The model's chat template runs too long.")


def _check_size(value: Any) -> Any:
    if isinstance(value, str | bytes | list | tuple | dict) and len(value) > MAX_PROMPT_CHARS:
        raise RenderError("The model's chat template makes too much text.")
    return value


def _count_turns(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        _spend_turns()
        yield value


class _CountingSandbox(ImmutableSandboxedEnvironment):
    """jinja2's sandbox, with everything counted that can grow or repeat."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        _spend_turns()
        if operator == "*":
            _check_product(left, right)
        elif operator == "**" and isinstance(right, int | float) and (abs(right) > 64 or abs(left) > 2**64):
            raise RenderError("The model's chat template makes too large a number.")
        elif operator == "%" and isinstance(left, str) and _WIDE.search(left):
            raise RenderError("The model's chat template makes too much text.")
        return _check_size(super().call_binop(context, operator, left, right))

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        _spend_turns(_CALL_COST_TURNS)
        if isinstance(obj, LoopContext):
            args = (_count_turns(args[0]), *args[1:])
        _check_method(obj, args, kwargs)
        return _check_size(super().call(context, obj, *args, **kwargs))

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        counted: nodes.Template = _CountingTransformer().visit(tree)
        return counted


class _CountingTransformer(NodeTransformer):
    """Puts a counter on every loop, and a limit on everything that makes text out of texts."""

    def visit_For(self, node: nodes.For) -> nodes.For:  # noqa: N802 - jinja2 finds it by this name
        self.generic_visit(node)
        node.iter = _wrap_in_filter("counted", node.iter)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Expr:  # noqa: N802 - as above
        self.generic_visit(node)
        return _wrap_in_filter("small", node)

    def visit_Filter(self, node: nodes.Filter) -> nodes.Expr:  # noqa: N802 - as above
        self.generic_visit(node)
        return _wrap_in_filter("small", node)


def _wrap_in_filter(name: str, node: Any) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


def _check_product(left: object, right: object) -> None:
    for many, times in ((left, right), (right, left)):
        if (
            isinstance(many, str | bytes | list | tuple)
            and isinstance(times, int)
            and len(many) * times > MAX_PROMPT_CHARS
        ):
            raise RenderError("The model's chat template makes too much text.")


def _check_method(method: object, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Refuse the methods of a text that can make a large one out of small ones."""
    text = getattr(method, "__self__", None)
    if isinstance(text, str) and isinstance(args, tuple):
        numbers = [abs(number) for number in (*args, *kwargs.values()) if isinstance(number, int)]
        if max(numbers, default=0) > MAX_PROMPT_CHARS and getattr(method, "__name__", "") not in {
            "replace",
            "split",
            "rsplit",
        }:
            raise RenderError("The model's chat template makes too much text.")
        if getattr(method, "__name__", "") in {"replace", "join"}:
            _check_replaced(text, args)


def _check_replaced(text: str, args: tuple[Any, ...]) -> None:
    longest = max((len(part) for part in args if isinstance(part, str | list | tuple)), default=0)
    if longest * max(len(text), 1) > 64 * MAX_PROMPT_CHARS:
        raise RenderError("The model's chat template makes too much text.")


def _raise_exception(message: str) -> str:
    raise RefusedError(_REFUSED.format(message[:300]), "input")


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **more: Any) -> str:
    """As transformers does it: not jinja2's own, which writes JSON for HTML."""
    separators, sort_keys = more.get("separators"), bool(more.get("sort_keys"))
    indent = None if indent is None else min(indent, 16)
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


class _GenerationTag(Extension):
    """`{% generation %}`, with which some templates mark what is trained on: its body counts, the tag does not."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: Any) -> list[nodes.Node]:
        next(parser.stream)
        body: list[nodes.Node] = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return body


def _create_sandbox() -> _CountingSandbox:
    sandbox = _CountingSandbox(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationTag])
    sandbox.filters |= {"tojson": _tojson, "counted": _count_turns, "small": _check_size}
    for name in ("center", "format", "wordwrap", "xmlattr", "urlize"):
        del sandbox.filters[name]  # these make large texts out of small ones, or HTML
    sandbox.globals["raise_exception"] = _raise_exception
    return sandbox


_sandbox = _create_sandbox()
