"""Chat templates, run in the sandbox of transformers, with bounds on memory and time.

A template is part of a model, so it is untrusted code. The sandbox keeps it from the server's objects. The bounds keep
it from exhausting memory and time (`template_limits.py`): loop iterations and calls are counted, and the size of every
intermediate value is limited, not only that of the prompt. The caller enforces a deadline, since this module has no
clock. A template that a request brings runs in another process besides (`app.sandbox.sandboxed_template`).
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from datetime import datetime
from functools import cached_property, wraps
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from antiphon.harmony.prompt.templates import template_limits as limits
from antiphon.harmony.prompt.templates.template_variables import find_read_variables
from antiphon.harmony.rendered_prompt import RenderError

_LIST_CHANGES = frozenset({"append", "pop"})
_REFUSED = "The model's chat template refused the conversation: {}"


class RefusedError(RenderError):
    """The template refuses the conversation in this shape; it may accept another."""


class ChatTemplate:
    """A compiled chat template."""

    def __init__(self, source: str) -> None:
        self.source = source
        try:
            self._template = _sandbox.from_string(source)
        except (TemplateError, RecursionError, ValueError, SyntaxError, MemoryError) as error:  # also from compiling it
            reason = "it is nested too deeply" if isinstance(error, RecursionError) else error
            raise RenderError(f"The model's chat template does not compile: {reason}") from error

    @cached_property
    def variables(self) -> frozenset[str] | None:
        """Names that the template may read before it sets them, without the built-in ones; None if unknown."""
        try:
            names = find_read_variables(_sandbox.parse(self.source))
        except RecursionError:
            return None
        return names - _sandbox.globals.keys() - {"strftime_now"}

    @cached_property
    def constants(self) -> frozenset[str]:
        """String constants of the template."""
        constants = (node.value for node in _sandbox.parse(self.source).find_all(nodes.Const))
        return frozenset(value for value in constants if isinstance(value, str))

    def render(
        self,
        context: Mapping[str, Any],
        *,
        now: datetime,
        max_chars: int = limits.MAX_RENDERED_CHARS,
        max_steps: int = limits.MAX_TEMPLATE_STEPS,
    ) -> str:
        """Runs the template. Raises `RenderError` at a limit, `RefusedError` if the template fails or raises itself."""
        token, given = limits.start_budget(max_steps), _given_lists.set(_GivenLists(context))
        try:
            return _join_pieces(self._template.generate(**context, strftime_now=now.strftime), max_chars)
        except RenderError:
            raise
        except MemoryError:
            raise RenderError("The model's chat template exceeds the limit on memory.") from None
        except Exception as error:  # a template is a program: any error in it is the template's
            raise RefusedError(_REFUSED.format((str(error) or type(error).__name__)[:300]), "input") from error
        finally:
            _given_lists.reset(given)
            limits.end_budget(token)


class _GivenLists:
    """The lists in the variables of a rendering. They are looked for once a template tries to change a list."""

    def __init__(self, context: Mapping[str, Any]) -> None:
        self._context = context
        self._ids: set[int] | None = None

    def has(self, value: list[Any]) -> bool:
        """Tells whether a list came with the variables; otherwise the template made it."""
        if self._ids is None:
            self._ids = _find_containers(self._context)
        return id(value) in self._ids


_given_lists: ContextVar[_GivenLists] = ContextVar("given_lists")


def _find_containers(context: Mapping[str, Any]) -> set[int]:
    """Returns the ids of all lists and dicts inside the variables."""
    found, waiting = set[int](), list[Any](context.values())
    while waiting:
        value = waiting.pop()
        if isinstance(value, list | tuple | dict) and id(value) not in found:
            found.add(id(value))
            waiting += value.values() if isinstance(value, dict) else value
    return found


def _join_pieces(pieces: Iterable[str], longest: int) -> str:
    parts, length = [], 0
    for piece in pieces:
        parts.append(piece)
        length += len(piece)
        if length > longest:
            raise RenderError("The prompt is too long. Shorten the conversation.", "input")
    return "".join(parts)


def _count_turns(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        limits.spend_steps()
        yield value


class _LimitedSandbox(ImmutableSandboxedEnvironment):
    """jinja2's sandbox, with a count of all that can repeat and a limit on all that can grow."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Lets a template append to lists that it made and take from them, as some for llama.cpp do.

        The lists of its variables stay as they are: a prompt may be rendered again from the same ones.
        """
        if attr in _LIST_CHANGES and type(obj) is list and not _given_lists.get().has(obj):
            return True
        return super().is_safe_attribute(obj, attr, value)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        limits.check_binop(operator, left, right)
        return limits.check_size(super().call_binop(context, operator, left, right))

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        if isinstance(obj, LoopContext):
            args = (_count_turns(args[0]), *args[1:])
        limits.check_call(obj, args, kwargs)
        return limits.check_size(super().call(context, obj, *args, **kwargs))

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        transformed: nodes.Template = _LimitTransformer().visit(tree)
        return transformed


class _LimitTransformer(NodeTransformer):
    """Wraps every loop in a counter, and every expression whose cost depends on the size of its operands in a check."""

    def visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> Any:
        self.generic_visit(node, *args, **kwargs)
        match node:
            case nodes.For():
                node.iter = _wrap_in_filter("counted", node.iter)
            case nodes.Concat():
                node.nodes = [_wrap_in_filter("expanded", inner) for inner in node.nodes]
                return _wrap_in_filter("small", node)
            case nodes.Compare() if not _is_cheap(node):
                node.expr = _wrap_in_filter("expanded", node.expr)
                for operand in node.ops:
                    operand.expr = _wrap_in_filter("expanded", operand.expr)
            case nodes.Test() if node.name not in ("defined", "undefined"):  # these look at the name, not at the value
                node.args = [_wrap_in_filter("expanded", argument) for argument in node.args]
            case nodes.Pair():
                node.key = _wrap_in_filter("expanded", node.key)  # it is hashed, and a tuple may contain tuples
            case nodes.Filter():
                return _wrap_in_filter("small", node)
        return node


def _is_cheap(node: nodes.Compare) -> bool:
    """Tells whether this is a comparison with a constant, as in most templates, which costs nothing."""
    return len(node.ops) == 1 and node.ops[0].op not in ("in", "notin") and isinstance(node.ops[0].expr, nodes.Const)


def _wrap_in_filter(name: str, node: Any) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


def _check_written(value: Any) -> Any:
    """Checks a value that is written to the prompt, where a list is written with all it contains."""
    return value if isinstance(value, str) else limits.check_expanded(value)


def _limit_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a filter that checks its input before it runs. The first arguments may be jinja2's own."""
    num_own = 1 if hasattr(function, "jinja_pass_arg") else 0

    @wraps(function)
    def limited(*args: Any, **kwargs: Any) -> Any:
        value, given = args[num_own], (*args[num_own + 1 :], *kwargs.values())
        limits.check_filter(name, value, given)
        return function(*args, **kwargs)

    return limited


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


def _create_sandbox() -> _LimitedSandbox:
    sandbox = _LimitedSandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationTag], finalize=_check_written
    )
    for name in ("center", "format", "wordwrap", "xmlattr", "urlize"):
        del sandbox.filters[name]  # these build large texts from small ones, or HTML
    del sandbox.globals["lipsum"]  # it writes any amount of random text
    sandbox.filters["tojson"] = _tojson
    sandbox.filters = {name: _limit_filter(name, function) for name, function in sandbox.filters.items()}
    checks = {"counted": _count_turns, "small": limits.check_size, "expanded": limits.check_expanded}
    sandbox.filters |= checks
    sandbox.globals["raise_exception"] = _raise_exception
    return sandbox


_sandbox = _create_sandbox()
