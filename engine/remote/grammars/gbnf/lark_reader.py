"""Reads Lark text, in the dialect of llguidance, into definitions."""

import json
import re
from typing import Any, Literal

import msgspec

from antiphon.engine.remote.grammars.gbnf.errors import UntranslatableError
from antiphon.engine.remote.grammars.lowering import lower_syntax

Kind = Literal[
    "sequence", "options", "repeat", "literal", "regex", "range", "name", "token", "json", "lark", "and", "not"
]
TOKENS = re.compile(
    r"""
    (?P<blank>[ \t\r\n]+|//[^\n]*|\#[^\n]*)
    | (?P<string>"(?:\\.|[^"\\\n])*"i?)
    | (?P<regex>/(?:\\.|[^/\\\n])+/[a-z]*)
    | (?P<token><\[[0-9]+\]>)
    | (?P<nested>%(?:json|lark))\b
    | (?P<count>~[ ]*[0-9]+(?:[ ]*\.\.[ ]*[0-9]+)?|\{[0-9]*,?[0-9]*\})
    | (?P<arrow>->[ ]*[A-Za-z_]\w*)
    | (?P<name>[?!]?[A-Za-z_][\w-]*)
    | (?P<sign>\.\.|[:|&~()\[\]?*+{}=,])
    | (?P<other>.)
    """,
    re.VERBOSE,
)
COUNT = re.compile(r"[0-9]+")
DEFINITION = re.compile(r"[ \t]*(?:\[[^\]\n]*\][ \t]*)?:")
"""Pattern of the text after a name that begins a definition."""
BLANKS_PATTERN = re.compile(r"[ \t\r\n]*")
MAX_RULE_DEPTH = 100
_json = json.JSONDecoder()


class LarkNode(msgspec.Struct, frozen=True):
    """A part of a definition."""

    kind: Kind
    parts: tuple["LarkNode", ...] = ()
    value: Any = None
    """The text, the name, the number of a token, the schema, the nested definitions or the counts."""


class LarkDefinition(msgspec.Struct, frozen=True):
    """A rule or, with a name in capitals, a terminal."""

    body: LarkNode
    is_lazy: bool = False


Definitions = dict[str, LarkDefinition]


class LarkReader:
    """Reads definitions until the end of the text, or to the brace that ends a nested grammar."""

    def __init__(self, source: str, position: int = 0, depth: int = 0) -> None:
        self._source, self.position, self._depth = source, position, depth
        self._kind, self._text = "", ""
        self._advance()

    def read(self) -> Definitions:
        """Returns the definitions. Raises `UntranslatableError`."""
        definitions: Definitions = {}
        while self._kind == "name":
            name = self._text.lstrip("?!")
            self._advance()
            is_lazy = self._read_attributes()
            self._expect(":")
            definitions[name] = LarkDefinition(self._read_options(), is_lazy)
        if self._kind and self._text != "}":
            raise UntranslatableError(f"{self._text!r} in a grammar")
        return definitions

    def _advance(self) -> None:
        while True:
            match = TOKENS.match(self._source, self.position)
            if match is None:
                self._kind, self._text = "", ""
                return
            self._kind, self._text, self._start = match.lastgroup or "", match[0], self.position
            self.position = match.end()
            if self._kind != "blank":
                return

    def _take(self, text: str) -> bool:
        if self._kind == "sign" and self._text == text:
            self._advance()
            return True
        return False

    def _expect(self, text: str) -> None:
        if not self._take(text):
            raise UntranslatableError(f"{self._text!r} in a grammar")

    def _read_attributes(self) -> bool:
        """Returns true for `[lazy]`, the only attribute that changes what a rule matches and can be translated."""
        if not self._take("["):
            return False
        is_lazy = self._text == "lazy"
        if self._text not in ("lazy", "capture"):
            raise UntranslatableError(f"the attribute {self._text}")
        self._advance()
        self._expect("]")
        return is_lazy

    def _read_options(self) -> LarkNode:
        self._depth += 1
        if self._depth > MAX_RULE_DEPTH:
            raise UntranslatableError("a grammar that is nested too deeply")
        self._take("|")
        options = [self._read_conjunction()]
        while self._take("|"):
            options.append(self._read_conjunction())
        self._depth -= 1
        return options[0] if len(options) == 1 else LarkNode("options", tuple(options))

    def _read_conjunction(self) -> LarkNode:
        parts = [self._read_sequence()]
        while self._take("&"):
            parts.append(self._read_sequence())
        return parts[0] if len(parts) == 1 else LarkNode("and", tuple(parts))

    def _read_sequence(self) -> LarkNode:
        parts = list[LarkNode]()
        while (part := self._read_part()) is not None:
            parts.append(part)
        if self._kind == "arrow":  # a name for the parse tree, which nothing reads
            self._advance()
        return parts[0] if len(parts) == 1 else LarkNode("sequence", tuple(parts))

    def _read_part(self) -> LarkNode | None:
        if self._take("~"):
            part = self._read_part()
            if part is None:
                raise UntranslatableError("a complement without an operand")
            return LarkNode("not", (part,))
        atom = self._read_atom()
        while atom is not None:
            if self._kind == "count":
                atom = LarkNode("repeat", (atom,), _read_counts(self._text))
                self._advance()
            elif self._kind == "sign" and self._text in "?*+":
                atom = LarkNode("repeat", (atom,), {"?": (0, 1), "*": (0, None), "+": (1, None)}[self._text])
                self._advance()
            else:
                break
        return atom

    def _read_atom(self) -> LarkNode | None:
        kind, text = self._kind, self._text
        if kind == "name":
            is_next = DEFINITION.match(self._source, self.position) is not None
            return None if is_next else self._finish_atom(LarkNode("name", value=text))
        if kind == "string":
            return self._read_string()
        if kind == "regex":
            pattern, _, flags = text[1:].rpartition("/")
            return self._finish_atom(LarkNode("regex", value=(pattern.replace("\\/", "/"), flags)))
        if kind == "token":
            return self._finish_atom(LarkNode("token", value=int(text[2:-2])))
        if kind == "nested":
            return self._read_nested(text)
        if self._take("("):
            inner = self._read_options()
            self._expect(")")
            return inner
        if self._take("["):
            inner = self._read_options()
            self._expect("]")
            return LarkNode("repeat", (inner,), (0, 1))
        if kind in ("", "arrow") or text in "|&)]}":
            return None
        raise UntranslatableError(f"{text!r} in a grammar")

    def _finish_atom(self, node: LarkNode) -> LarkNode:
        self._advance()
        return node

    def _read_string(self) -> LarkNode:
        is_folded = self._text.endswith("i")
        first = _decode_string(self._text.removesuffix("i"))
        self._advance()
        if not self._take(".."):
            return LarkNode("literal", value=(first, "i" if is_folded else ""))
        last = _decode_string(self._text) if self._kind == "string" and not is_folded else ""
        if len(first) != 1 or len(last) != 1 or first > last:
            raise UntranslatableError("a range of other than two characters")
        self._advance()
        return LarkNode("range", value=(first, last))

    def _read_nested(self, directive: str) -> LarkNode:
        if directive == "%lark":
            self._advance()
            if self._text != "{":
                raise UntranslatableError("%lark without a grammar")
            reader = LarkReader(self._source, self.position, self._depth + 1)
            definitions = reader.read()
            if reader._text != "}":
                raise UntranslatableError("%lark without an end")
            self.position = reader.position
            self._advance()
            return LarkNode("lark", value=definitions)
        start = BLANKS_PATTERN.match(self._source, self.position)
        assert start is not None
        try:
            schema, self.position = _json.raw_decode(self._source, start.end())
        except (ValueError, RecursionError):
            raise UntranslatableError("a JSON Schema that is nested too deeply") from None
        self._advance()
        return LarkNode("json", value=schema)


def _read_counts(text: str) -> tuple[int, int | None]:
    numbers = [int(each) for each in COUNT.findall(text)]
    if not numbers or max(numbers) > 1_000_000:
        raise UntranslatableError(f"the count {text}")
    if "," not in text and ".." not in text:
        return numbers[0], numbers[0]
    if text.startswith("{,"):
        return 0, numbers[0]
    return numbers[0], numbers[1] if len(numbers) > 1 else None


def _decode_string(text: str) -> str:
    try:
        decoded: str = json.loads(lower_syntax(text))
    except ValueError:
        raise UntranslatableError(f"the text {text}") from None
    return decoded
