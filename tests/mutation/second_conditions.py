"""Makes mutants of a module's second conditions: what a test of the usual case does not decide.

| kind | change |
|---|---|
| `negate` | an operand of `and` or `or` is negated |
| `drop` | an operand of `and` or `or`, or the filter of a comprehension, is missing |
| `limit` | `<` becomes `<=`, `>=` becomes `>`, and so on: off by one |
| `element` | one alternative of `isinstance(x, A | B)`, `x in (a, b)` or `case A() | B()` is missing |
| `reset` | an assignment to an attribute, or a call that removes from one, is missing; not in `__init__` |

Every change keeps the number of lines, so that all other functions compile to the same code.
"""

import ast
from collections.abc import Iterator, Sequence

from msgspec import Struct

LIMITS: dict[type[ast.cmpop], tuple[bytes, bytes]] = {
    ast.Lt: (b"<", b"<="),
    ast.LtE: (b"<=", b"<"),
    ast.Gt: (b">", b">="),
    ast.GtE: (b">=", b">"),
}
REMOVING_CALLS = frozenset(("clear", "pop", "popleft", "popitem", "discard", "remove", "cancel"))
"""Methods that undo an earlier state. A call of one that stands alone is a reset."""
Span = tuple[int, int]
Change = tuple[str, Span, bytes]
"""Kind, the bytes that are replaced, and the new ones."""


class SecondConditionMutant(Struct, frozen=True, kw_only=True):
    """A change of one place in a module. `start` and `end` are positions in its bytes."""

    file: str
    line: int
    scope: str
    """Qualified name of the function, or an empty string at the level of the module."""
    kind: str
    start: int
    end: int
    old: str
    new: str
    tests: tuple[str, ...] = ()
    """Arguments of pytest that select the tests of the module."""

    @property
    def change(self) -> str:
        """The change in one line, by which the list of equivalents names it."""
        return f"{_collapse_blanks(self.old)} -> {_collapse_blanks(self.new)}"

    def apply(self, code: str) -> str:
        """Returns the changed code. Raises `ValueError` if another text is in its place."""
        content = code.encode()
        if content[self.start : self.end] != self.old.encode():
            raise ValueError(f"{self.file}:{self.line} no longer contains {self.old!r}")
        return (content[: self.start] + self.new.encode() + content[self.end :]).decode()


def generate_mutants(file: str, code: str) -> list[SecondConditionMutant]:
    """Returns the mutants of a module, in the order of its text. All of them compile, to code other than the module's."""
    tree, text = ast.parse(code), _ModuleText(code)
    original = ast.dump(tree)
    mutants = []
    for scope, node in _walk_scopes(tree):
        for kind, (start, end), new in _list_changes(node, text, scope):
            mutant = SecondConditionMutant(
                file=file,
                line=text.line_of(start),
                scope=scope,
                kind=kind,
                start=start,
                end=end,
                old=text.content[start:end].decode(),
                new=_keep_lines(text.content[start:end], new).decode(),
            )
            if _parse_or_none(mutant.apply(code)) not in (None, original):
                mutants.append(mutant)
    return sorted(mutants, key=lambda mutant: (mutant.start, mutant.end, mutant.kind))


class _ModuleText:
    """The bytes of a module, with the positions of its nodes, which count bytes, too."""

    def __init__(self, code: str) -> None:
        self.content = code.encode()
        self._line_starts = [0]
        for line in self.content.splitlines(keepends=True):
            self._line_starts.append(self._line_starts[-1] + len(line))

    def span_of(self, node: ast.expr | ast.stmt | ast.pattern) -> Span:
        assert node.end_lineno is not None and node.end_col_offset is not None
        start = self._line_starts[node.lineno - 1] + node.col_offset
        return start, self._line_starts[node.end_lineno - 1] + node.end_col_offset

    def line_of(self, position: int) -> int:
        return self.content.count(b"\n", 0, position) + 1


def _walk_scopes(tree: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    """Yields every node with the qualified name of its function or class. Leaves out what only type checkers read."""
    pending: list[tuple[str, ast.AST]] = [("", node) for node in tree.body]
    while pending:
        scope, node = pending.pop()
        # The positions of nodes inside f-strings are not those of the module's text.
        if isinstance(node, ast.JoinedStr | ast.arguments) or _is_for_type_checkers(node):
            continue
        yield scope, node
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            scope = f"{scope}.{node.name}".lstrip(".")
        pending += [(scope, child) for child in ast.iter_child_nodes(node)]


def _is_for_type_checkers(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def _list_changes(node: ast.AST, text: _ModuleText, scope: str) -> Iterator[Change]:
    match node:
        case ast.BoolOp():
            yield from _change_operands(node, text)
        case ast.comprehension():
            for condition in node.ifs:
                yield "drop", text.span_of(condition), b"True"
        case ast.Compare():
            yield from _change_limits(node, text)
            yield from _remove_members(node, text)
        case ast.Call(func=ast.Name(id="isinstance"), args=[_, kinds]):
            yield from _remove_alternatives(kinds, text)
        case ast.MatchOr(patterns=patterns):
            for index in range(len(patterns)):
                yield "element", text.span_of(node), _join_rest(patterns, index, text, b" | ")
        case ast.stmt() if _is_reset(node) and scope.rpartition(".")[2] != "__init__":
            yield "reset", text.span_of(node), b"pass"


def _change_operands(node: ast.BoolOp, text: _ModuleText) -> Iterator[Change]:
    word = b" and " if isinstance(node.op, ast.And) else b" or "
    for operand in node.values:
        start, end = text.span_of(operand)
        if not isinstance(operand, ast.Constant):
            yield "negate", (start, end), b"(not (" + text.content[start:end] + b"))"
        rest = [
            b"(" + text.content[slice(*text.span_of(other))] + b")" for other in node.values if other is not operand
        ]
        yield "drop", text.span_of(node), b"(" + word.join(rest) + b")"


def _change_limits(node: ast.Compare, text: _ModuleText) -> Iterator[Change]:
    operands = [node.left, *node.comparators]
    for left, operator, right in zip(operands, node.ops, operands[1:], strict=False):
        if type(operator) not in LIMITS:
            continue
        old, new = LIMITS[type(operator)]
        start = text.content.index(old, text.span_of(left)[1], text.span_of(right)[0])
        yield "limit", (start, start + len(old)), new


def _remove_members(node: ast.Compare, text: _ModuleText) -> Iterator[Change]:
    """Removes one member of the tuple of a membership test."""
    for operator, right in zip(node.ops, node.comparators, strict=True):
        if isinstance(operator, ast.In | ast.NotIn) and isinstance(right, ast.Tuple) and len(right.elts) > 1:
            for index in range(len(right.elts)):
                yield "element", text.span_of(right), b"(" + _join_rest(right.elts, index, text, b", ") + b",)"


def _remove_alternatives(kinds: ast.expr, text: _ModuleText) -> Iterator[Change]:
    alternatives = list(_split_union(kinds))
    for index in range(len(alternatives) if len(alternatives) > 1 else 0):
        yield "element", text.span_of(kinds), _join_rest(alternatives, index, text, b" | ")


def _split_union(node: ast.expr) -> Iterator[ast.expr]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        yield from _split_union(node.left)
        yield from _split_union(node.right)
    else:
        yield node


def _join_rest(nodes: Sequence[ast.expr | ast.pattern], index: int, text: _ModuleText, separator: bytes) -> bytes:
    """Returns the texts of all nodes except that at `index`."""
    spans = [text.span_of(node) for number, node in enumerate(nodes) if number != index]
    return separator.join(text.content[start:end] for start, end in spans)


def _is_reset(node: ast.stmt) -> bool:
    match node:
        case ast.Assign(targets=[ast.Tuple(elts=targets)]):
            return all(map(_is_attribute, targets))
        case ast.Assign(targets=targets) | ast.Delete(targets=targets):
            return all(map(_is_attribute, targets))
        case ast.AugAssign(target=target):
            return _is_attribute(target)
        case ast.AnnAssign(target=target, value=ast.expr()):
            return _is_attribute(target)
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=owner, attr=name))):
            return name in REMOVING_CALLS and _is_attribute(owner)
    return False


def _is_attribute(target: ast.expr) -> bool:
    """Tells whether a target is an attribute, or an entry of one."""
    return isinstance(target, ast.Attribute) or (
        isinstance(target, ast.Subscript) and isinstance(target.value, ast.Attribute)
    )


def _keep_lines(old: bytes, new: bytes) -> bytes:
    """Returns `new` with as many line ends as `old`. Those that are added stand in parentheses or after a `pass`."""
    missing = b"\n" * (old.count(b"\n") - new.count(b"\n"))
    if not missing:
        return new
    return new + missing if new == b"pass" else b"(" + new + missing + b")"


def _parse_or_none(code: str) -> str | None:
    try:
        return ast.dump(ast.parse(code))
    except SyntaxError:
        return None


def _collapse_blanks(text: str) -> str:
    return " ".join(text.split())
