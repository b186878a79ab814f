"""Outputs with calls in a dialect's own syntax, and mutations of them as models err: quotes, brackets, numbers, escapes.

An output is split at the markers of its dialect and at the signs of values. Pieces are replaced, repeated, left out,
exchanged, or joined by hostile ones.
"""

import json
import random
import re
from collections.abc import Sequence

from antiphon.events.tools import CustomTool, FunctionTool, LocalShellTool, PatchTool, ShellTool, ToolSearchTool
from antiphon.harmony.detection.detect import DIALECTS
from antiphon.harmony.dialect import Dialect
from antiphon.harmony.gptoss.reader import MARKERS as GPT_OSS_MARKERS
from antiphon.harmony.tools import HostedTool, ToolTable
from tests.harmony import parser_helpers
from tests.harmony.samples import SAMPLE_CALLS

SCHEMA = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "list": {"type": "array", "items": {"type": "string"}},
        "object": {"type": "object"},
        "both": {"type": ["array", "object"]},
        "count": {"type": "integer"},
        "size": {"type": ["number", "null"]},
        "yes": {"type": "boolean"},
        "either": {"anyOf": [{"type": "number"}, {"type": "string"}]},
        "any": {},
    },
    "required": ["text"],
}
ARGUMENTS = {"text": "a", "list": ["u", "v"], "object": {"k": 1}, "both": [1], "count": 3, "size": 1.5, "yes": True,
             "either": 2, "any": [None, {"x": "y"}]}  # fmt: skip
FUNCTIONS = ToolTable.from_request(
    [
        FunctionTool(name="add", parameters=parser_helpers.ADD_SCHEMA),
        FunctionTool(name="write", parameters=parser_helpers.WRITE_SCHEMA),
        FunctionTool(name="now"),
        FunctionTool(name="typed", parameters=SCHEMA),
        CustomTool(name="script"),
    ]
)
BUILTINS = ToolTable.from_request(
    [
        ShellTool(),
        PatchTool(),
        LocalShellTool(),
        ToolSearchTool(execution="client", description="Finds tools.", parameters={"type": "object"}),
        HostedTool(kind="code_interpreter", name="python", parameters={"type": "object"}),
    ]
)
SLOT = "SLOT"
"""Stands in an output where a value is drawn."""
PATCH = "*** Begin Patch\n*** Update File: a\n@@\n-b\n+c\n*** Add File: d\n+e\n*** End Patch"
BUILTIN_CALLS = (
    ("shell", {"commands": ["ls", "echo 'é'"], "timeout_ms": 5000, "max_output_length": 9}),
    ("shell", {"command": ["bash", "-lc", "ls"]}),
    ("shell", {"command": SLOT, "timeout_ms": SLOT}),
    ("shell", {"cmd": ["bash", "-lc", SLOT], "max_output_length": SLOT}),
    ("local_shell", {"command": SLOT, "timeout_ms": SLOT, "env": SLOT}),
    ("tool_search", {"query": SLOT}),
    ("python", {"code": SLOT}),
    ("apply_patch", {"input": SLOT}),
    ("shell", {"cmd": ["echo", "a b"], "timeout_ms": None}),
    ("local_shell", {"command": ["ls", "-l"], "timeout_ms": 5000, "env": {"A": "b"}, "user": None}),
    ("tool_search", {"query": "a", "limit": 3}),
    ("python", {"code": "print(1)\n"}),
    ("apply_patch", {"input": PATCH}),
)
HOSTILE_VALUES = (
    '"a.py", "b.py"', "'a', 'b'", "1, 2", "(1, 2)", "('a',)", "(1,)", "()", "1,", '"a": 1, "b": 2', "{1: 2}", "{1, 2}", "{(1, 2): 3}",
    "{'a': (1, 2)}", "[(1, 2), {'b': {1}}]", 'b"x"', "1j", "...", "set()", "None", "nan", "NaN", "Infinity", "-Infinity", "[NaN]",
    "[1e999]", "1e999", "-1e999", "1E400", "0.1e-999", "00", "-0", "+1", "1_000", "0x10", ".5", "5.", "1.", "-", "9" * 30, "9" * 4301,
    "[" + "9" * 4301 + "]", "0x" + "f" * 4301, "[0x" + "f" * 4301 + "]", "1" + "0" * 400 + ".0", "True", "tRuE", "null", "undefined",
    '"\\ud83d"', "'\\ud83d'", '["\\ud83d"]', "['\\ud83d']", '{"\\ud83d": "\\ude00"}', "{'\\ud83d': 1}", '{"a": 1, "a": 2}', "{'a': 1, 'a': 2}",
    '"\\N{BULLET}"', '"\\x80"', "'\\777'", '"\\U00110000"', "f'{x}'", "'a' 'b'", "[1, 2", "{'a': 1", '["a" "b"]', "[1,]", "{,}", "[,]",
    "[" * 70 + "]" * 70, "(" * 250 + ")" * 250, "{'a':" * 110 + "1" + "}" * 110, '{"a":' * 1100, "[" * 1100, "-" * 300 + "1", "~1", "1+1", "1-2j",
    '"' * 3, "'" * 3, '""""', "''''''", "\x00", "\u2028", "\x85", "\ufeff", "\ud7ff", "\uffff", "😀", "a\u0301",
)  # fmt: skip
HOSTILE_SIGNS = (
    '"', "'", "`", "[", "]", "{", "}", "(", ")", ",", ", ", ":", ": ", "=", ";", "<", ">", "/", "\\", "\\\\", '\\"', "\\'", "\\n", "\\u", "\\u12", "\\ud83d",
    "\\ude00", "\\ud83d\\ude00", "\\ud83d\\u0041", "\\x", "\\x4", "\\7", "\\N", "&", "&amp;", "&quot;", "&lt;", "&#xD83D;", "&#55357;", "&#0;", "&#99999999;",
    "<![CDATA[", "]]>", "<!--", "\n", " ", "\t", "\r\n", "\x0b", ",}", ",]", "}}", ": {", "name", '"name"', '"arguments"', '"parameters"', '"input"', "input",
    "arguments", "function", "null", "text", "list", "object", "typed", "script", "add", "a", "1", "true", "```", "```json", "call:", "functions.", ":0", '=""',
)  # fmt: skip
_SIGNS = r"""\\u[0-9a-fA-F]{4}|\\.|[\w.-]+|\s+|."""


class CallMutator:
    """Draws mutated outputs of one dialect. `outputs`: texts to start from; `markers`: those of the dialect."""

    def __init__(self, outputs: Sequence[str], markers: Sequence[str], rng: random.Random) -> None:
        self._rng = rng
        self._markers = tuple(markers) or ("<tool_call>",)
        texts = sorted({marker for marker in markers if len(marker) > 1}, key=len, reverse=True)
        pattern = re.compile("|".join([*map(re.escape, texts), _SIGNS]), re.DOTALL)
        self._outputs, self._pattern = outputs, pattern

    def draw(self) -> str:
        """Returns an output with a value in each slot and at most six mutations."""
        text = self._fill_slots(self._rng.choice(self._outputs))
        num_mutations = self._rng.choice((0, 1, 1, 2, 3, 6))
        if num_mutations:
            pieces = self._pattern.findall(text)
            for _ in range(num_mutations):
                self._mutate(pieces)
            text = "".join(pieces)
        return text + self._fill_slots(self._rng.choice(self._outputs)) if self._rng.random() < 0.2 else text

    def _fill_slots(self, text: str) -> str:
        """Returns the text with a value in place of each slot, or of each slot and the quotes around it."""
        while SLOT in text:
            slot = f'"{SLOT}"' if f'"{SLOT}"' in text and self._rng.random() < 0.5 else SLOT
            text = text.replace(slot, self._rng.choice(HOSTILE_VALUES), 1)
        return text

    def _mutate(self, pieces: list[str]) -> None:
        rng = self._rng
        at = rng.randrange(len(pieces) + 1)
        kind = rng.randrange(8)
        if kind <= 2:  # a value or a sign takes the place of a piece
            pieces[at : at + 1] = [self._draw_hostile_piece()]
        elif kind == 3:
            pieces.insert(at, self._draw_hostile_piece())
        elif kind == 4:
            del pieces[at : at + rng.choice((1, 1, 2, 5))]
        elif kind == 5:  # a run is repeated: a key with its value, a tag, a call
            run = pieces[at : at + rng.choice((1, 3, 5, 8, 20))]
            pieces[at:at] = run
        elif kind == 6:
            other = rng.randrange(len(pieces) + 1)
            pieces[at : at + 1], pieces[other : other + 1] = pieces[other : other + 1], pieces[at : at + 1]
        else:
            del pieces[at + 1 :]

    def _draw_hostile_piece(self) -> str:
        return self._rng.choice(self._rng.choice((HOSTILE_VALUES, HOSTILE_SIGNS, self._markers)))


def write_outputs(name: str, tools: ToolTable) -> list[str]:
    """Returns an output of a dialect for each call of `list_calls` that it can write, and one with all these calls."""
    written = []
    for tool_name, arguments in list_calls(tools):
        tool = tools.find_tool(tool_name)
        assert tool is not None, tool_name
        text = json.dumps(arguments, ensure_ascii=False) if tool.kind == "function" else str(arguments)
        if name == "gpt-oss":
            written.append(f"<|channel|>commentary to=functions.{tool_name} <|constrain|>json<|message|>{text}<|call|>")
        else:
            formats = DIALECTS[name].calls
            written += [call for form in formats if (call := form.write_calls([(tool, text)])) is not None]
    return [*written, "<|start|>assistant".join(written) if name == "gpt-oss" else "\n".join(written)]


def list_calls(tools: ToolTable) -> list[tuple[str, object]]:
    """Returns calls of all tools of a table."""
    if tools is BUILTINS:
        return list(BUILTIN_CALLS)
    samples = [SAMPLE_CALLS[sample] for sample in SAMPLE_CALLS]
    slots = [("typed", {key: SLOT}) for key in ARGUMENTS]
    return [
        *samples,
        ("typed", ARGUMENTS),
        ("typed", dict.fromkeys(ARGUMENTS, SLOT)),
        *slots,
        ("typed", {SLOT: 1, "text": SLOT}),
        ("script", PATCH),
        ("script", SLOT),
    ]


def list_markers(name: str) -> tuple[str, ...]:
    """Returns the markers of a dialect."""
    return GPT_OSS_MARKERS if name == "gpt-oss" else DIALECTS[name].all_markers


def write_reasoning(dialect: Dialect | None) -> list[str]:
    """Returns an output with reasoning and an answer."""
    if dialect is None:
        return ["<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Hello.<|return|>"]
    think, answer = dialect.think or ("", ""), dialect.answer or ("", "")
    return [f"{think[0]}\nHm.\n{think[1]}\n\n{answer[0]}Hello.{answer[1]}"]
