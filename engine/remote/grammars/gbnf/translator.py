"""Translates the grammar of a turn to GBNF."""

from collections.abc import Mapping

import msgspec

from antiphon.engine.remote.grammars.gbnf.automaton import RegularWriter
from antiphon.engine.remote.grammars.gbnf.errors import UntranslatableError
from antiphon.engine.remote.grammars.gbnf.json_schema import JsonSchemaWriter
from antiphon.engine.remote.grammars.gbnf.lark_reader import Definitions, LarkNode, LarkReader
from antiphon.engine.remote.grammars.gbnf.regex_reader import RegexReader
from antiphon.engine.remote.grammars.gbnf.regular import ANYTHING, UNBOUNDED, ExpressionTable
from antiphon.engine.remote.grammars.gbnf.rules import RuleWriter, Symbol

MAX_GBNF_CHARS = 200_000
MAX_TEXT_BYTES = 1 << 20
"""Size of a translated grammar."""


class GbnfGrammar(msgspec.Struct, frozen=True):
    """A translated grammar, and the ids of the tokens that it matches by id."""

    text: str
    token_ids: frozenset[int]


def translate_grammar(grammar: str, added_tokens: Mapping[int, str]) -> GbnfGrammar:
    """Returns the grammar in GBNF. Raises `UntranslatableError`.

    `added_tokens`: texts of the tokens that the original matches by id only. In GBNF a token matches wherever its
    text does, so that the text of the tokens which the grammar uses is excluded from patterns.
    """
    if len(grammar) > MAX_GBNF_CHARS:
        raise UntranslatableError(f"more than {MAX_GBNF_CHARS} characters")
    try:
        definitions = LarkReader(grammar).read()
        token_ids = frozenset(_list_tokens(definitions))
        excluded = [text for token in token_ids if (text := added_tokens.get(token, ""))]
        translation = _Translation(excluded)
        root = _Scope(translation, definitions).write_rule("start")
        text = translation.rules.render((root,))
    except RecursionError:
        raise UntranslatableError("a grammar that is nested too deeply") from None
    if len(text) > MAX_TEXT_BYTES:
        raise UntranslatableError(f"more than {MAX_TEXT_BYTES} bytes in GBNF")
    return GbnfGrammar(text, token_ids)


class _Translation:
    """The state that all scopes share."""

    def __init__(self, excluded: list[str]) -> None:
        self.table, self.rules = ExpressionTable(), RuleWriter()
        self.regular = RegularWriter(self.table, self.rules)
        texts = self.table.either(*map(self.table.literal, excluded))
        self.without = self.table.complement(self.table.concat(ANYTHING, texts, ANYTHING))
        self.schemas = JsonSchemaWriter(self.table, self.rules, self.regular, self.without)


class _Scope:
    """The definitions of one grammar: the turn's, or one that is nested in it."""

    def __init__(self, translation: _Translation, definitions: Definitions) -> None:
        self._translation, self._definitions = translation, definitions
        self._table, self._rules = translation.table, translation.rules
        self._written: dict[str, Symbol] = {}
        self._terminals: dict[tuple[str, bool], int] = {}
        self._open_terminals = set[str]()

    def write_rule(self, name: str) -> Symbol:
        """Returns a symbol for a rule or a terminal."""
        if name in self._written:
            return self._written[name]
        definition = self._definitions.get(name)
        if definition is None:
            raise UntranslatableError(f"the name {name}")
        if _is_terminal(name) or definition.is_lazy:
            number = self._table.both(self._read_regular(definition.body), self._translation.without)
            symbol = self._translation.regular.write(number, shortest=definition.is_lazy)
            self._written[name] = symbol
            return symbol
        symbol = self._written[name] = self._rules.reserve("g")
        self._rules.define(symbol, *self._list_alternatives(definition.body))
        return symbol

    def _list_alternatives(self, node: LarkNode) -> list[tuple[Symbol, ...]]:
        options = node.parts if node.kind == "options" else (node,)
        return [tuple(map(self._write_node, each.parts if each.kind == "sequence" else (each,))) for each in options]

    def _write_node(self, node: LarkNode) -> Symbol:
        if node.kind == "name":
            return self.write_rule(node.value)
        if node.kind == "token":
            return self._rules.token(node.value)
        if node.kind == "json":
            return self._translation.schemas.write_root(node.value)
        if node.kind == "lark":
            return _Scope(self._translation, node.value).write_rule("start")
        if node.kind == "repeat":
            return self._rules.repeat(self._write_node(node.parts[0]), *node.value)
        if node.kind in ("sequence", "options"):
            return self._rules.add("g", *self._list_alternatives(node))
        number = self._read_regular(node)
        if node.kind != "literal":
            number = self._table.both(number, self._translation.without)
        return self._translation.regular.write(number)

    def _read_regular(self, node: LarkNode, *, is_exact: bool = False) -> int:
        """Returns the expression of a terminal's body. `is_exact`: its complement is needed."""
        table = self._table
        if node.kind == "name":
            return self._read_terminal(node.value, is_exact=is_exact)
        if node.kind in ("literal", "regex"):
            text, flags = node.value
            return RegexReader(table, text if node.kind == "regex" else _quote(text), flags, is_exact=is_exact).read()
        if node.kind == "range":
            first, last = node.value
            return table.chars(((ord(first), ord(last)),))
        parts = [self._read_regular(part, is_exact=is_exact or node.kind == "not") for part in node.parts]
        if node.kind == "repeat":
            low, high = node.value
            return table.repeat(parts[0], low, UNBOUNDED if high is None else high)
        if node.kind == "not":
            return table.complement(parts[0])
        combine = {"sequence": table.concat, "options": table.either, "and": table.both}.get(node.kind)
        if combine is None:
            raise UntranslatableError("a token or a schema inside a terminal")
        return combine(*parts)

    def _read_terminal(self, name: str, *, is_exact: bool) -> int:
        place = (name, is_exact)
        if place not in self._terminals:
            if name in self._open_terminals or name not in self._definitions or not _is_terminal(name):
                raise UntranslatableError(f"the name {name} inside a terminal")
            self._open_terminals.add(name)
            self._terminals[place] = self._read_regular(self._definitions[name].body, is_exact=is_exact)
            self._open_terminals.discard(name)
        return self._terminals[place]


def _is_terminal(name: str) -> bool:
    return name.lstrip("_")[:1].isupper()


def _quote(text: str) -> str:
    return "".join(letter if letter.isalnum() or letter in " \n\t\r" else f"\\x{{{ord(letter):x}}}" for letter in text)


def _list_tokens(definitions: Definitions) -> list[int]:
    """Returns the ids of the tokens in all definitions, nested ones included."""
    found, pending = list[int](), [definition.body for definition in definitions.values()]
    while pending:
        node = pending.pop()
        pending += node.parts
        if node.kind == "token":
            found.append(node.value)
        elif node.kind == "lark":
            pending += [definition.body for definition in node.value.values()]
    return found
