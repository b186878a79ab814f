"""Chat templates, run in the sandbox as transformers runs them, with bounds on memory and time.

A template is part of a model, so it is untrusted code. The sandbox keeps it from the server's objects. The bounds keep
it from exhausting memory and time: loop iterations and calls are counted, and the size of every intermediate text is
limited, not only that of the prompt. The caller enforces a deadline, since this module has no clock.
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
"""Maximum characters of a prompt, or of any intermediate value of its rendering."""
MAX_LOOP_TURNS = 1_000_000
"""Maximum loop iterations of one rendering. A call of a macro or method counts as `_CALL_COST_TURNS` of them."""
_CALL_COST_TURNS = 4
_REFUSED = "The model's chat template refused the conversation: {}"
_WIDE = re.compile(r"[*]|\d{5}")
_turns: ContextVar[list[int]] = ContextVar("turns")


class RefusedError(RenderError):
    """The template refuses the conversation in this shape; it may accept another."""


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
        """Runs the template. Raises `RenderError` at a limit, `RefusedError` if the template fails or raises itself."""
        reset_token = _turns.set([max_turns])
        try:
            return _join_pieces(self._template.generate(**context, strftime_now=now.strftime), max_chars)
        except RenderError:
            raise
        except Exception as error:  # a template is a program: any error in it is the template's
            raise RefusedError(_REFUSED.format((str(error) or type(error).__name__)[:300]), "input") from error
        finally:
            _turns.reset(reset_token)


def _join_pieces(pieces: Iterable[str], longest: int) -> str:
    parts, length = [], 0
    for piece in pieces:
        parts.append(piece)
        length += len(piece)
        if length > longest:
            raise RenderError("The prompt is too long. Shorten the conversation.", "input")
    return "".join(parts)


def _spend_turns(turns: int = 1) -> None:
    budget = _turns.get(None)
    if budget is None:
        return  # compiling: jinja2 folds constants then
    budget[0] -= turns
    if budget[0] < 0:
        raise RenderError("The model's chat template exceeds the limit on loop iterations and calls.")


def _check_size(value: Any) -> Any:
    if isinstance(value, str | bytes | list | tuple | dict) and len(value) > MAX_PROMPT_CHARS:
        raise RenderError("The model's chat template exceeds the limit of 16 million characters for a text.")
    return value


def _count_turns(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        _spend_turns()
        yield value


class _CountingSandbox(ImmutableSandboxedEnvironment):
    """jinja2's sandbox, with a count of all that can repeat and a limit on all that can grow."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        _spend_turns()
        if operator == "*":
            _check_product(left, right)
        elif operator == "**" and isinstance(right, int | float) and (abs(right) > 64 or abs(left) > 2**64):
            raise RenderError("The model's chat template computes a power that is too large.")
        elif operator == "%" and isinstance(left, str) and _WIDE.search(left):
            raise RenderError("The model's chat template exceeds the limit of 16 million characters for a text.")
        return _check_size(super().call_binop(context, operator, left, right))

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        _spend_turns(_CALL_COST_TURNS)
        if isinstance(obj, LoopContext):
            args = (_count_turns(args[0]), *args[1:])
        _check_method(obj, args, kwargs)
        return _check_size(super().call(context, obj, *args, **kwargs))

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        transformed: nodes.Template = _CountingTransformer().visit(tree)
        return transformed


class _CountingTransformer(NodeTransformer):
    """Wraps every loop in a counter, and every expression that builds text from texts in a size check."""

    def visit_For(self, node: nodes.For) -> nodes.For:  # noqa: N802 - jinja2 looks the method up by this name
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
    for sequence, factor in ((left, right), (right, left)):
        if (
            isinstance(sequence, str | bytes | list | tuple)
            and isinstance(factor, int)
            and len(sequence) * factor > MAX_PROMPT_CHARS
        ):
            raise RenderError("The model's chat template exceeds the limit of 16 million characters for a text.")


def _check_method(method: object, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Rejects calls of string methods that would build a large text from small ones."""
    text = getattr(method, "__self__", None)
    if isinstance(text, str) and isinstance(args, tuple):
        numbers = [abs(number) for number in (*args, *kwargs.values()) if isinstance(number, int)]
        if max(numbers, default=0) > MAX_PROMPT_CHARS and getattr(method, "__name__", "") not in {
            "replace",
            "split",
            "rsplit",
        }:
            raise RenderError("The model's chat template exceeds the limit of 16 million characters for a text.")
        if getattr(method, "__name__", "") in {"replace", "join"}:
            _check_replaced(text, args)


def _check_replaced(text: str, args: tuple[Any, ...]) -> None:
    longest = max((len(part) for part in args if isinstance(part, str | list | tuple)), default=0)
    if longest * max(len(text), 1) > 64 * MAX_PROMPT_CHARS:
        raise RenderError("The model's chat template exceeds the limit of 16 million characters for a text.")


def _raise_exception(message: str) -> str:
    raise RefusedError(_REFUSED.format(message[:300]), "input")


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **kwargs: Any) -> str:
    """Serializes as transformers does; jinja2's own filter writes JSON for HTML."""
    separators, sort_keys = kwargs.get("separators"), bool(kwargs.get("sort_keys"))
    indent = None if indent is None else min(indent, 16)
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


class _GenerationTag(Extension):
    """The `{% generation %}` tag, which marks the trained text in some templates. Only its body is rendered."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it as a plain set

    def parse(self, parser: Any) -> list[nodes.Node]:
        next(parser.stream)
        body: list[nodes.Node] = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return body


def _create_sandbox() -> _CountingSandbox:
    sandbox = _CountingSandbox(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationTag])
    sandbox.filters |= {"tojson": _tojson, "counted": _count_turns, "small": _check_size}
    for name in ("center", "format", "wordwrap", "xmlattr", "urlize"):
        del sandbox.filters[name]  # these build large texts from small ones, or HTML
    sandbox.globals["raise_exception"] = _raise_exception
    return sandbox


_sandbox = _create_sandbox()
