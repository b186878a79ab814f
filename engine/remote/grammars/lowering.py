r"""Rewrites Lark text to the syntax that older versions of llguidance read.

Engines pin their own version. Those before 1.9 know neither a range of repetitions, `x ~ 1..3`, nor `\x41` in a
string; the forms `x{1,3}` and `\u0041` mean the same in every version.
"""

import json
import re

_TOKENS = re.compile(
    r"""
    (?P<string>"(?:\\.|[^"\\\n])*"?)
    | (?P<comment>//[^\n]*|\#[^\n]*)
    | (?P<regex>/(?:\\.|[^/\\\n])*/?)
    | (?P<json>%(?:json|regex|llguidance)[ \t\r\n]*)(?=[{\["])
    | ~[ \t]*(?P<low>[0-9]+)[ \t]*\.\.[ \t]*(?P<high>[0-9]+)
    """,
    re.VERBOSE,
)
_ESCAPE_PATTERN = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|.)")
_json = json.JSONDecoder()


def lower_syntax(grammar: str) -> str:
    """Returns the same grammar in the older syntax. Text that is not Lark is left as it is."""
    parts, position = list[str](), 0
    while match := _TOKENS.search(grammar, position):
        parts.append(grammar[position : match.start()])
        position = match.end()
        if match["json"]:
            try:
                position = _json.raw_decode(grammar, position)[1]
            except (ValueError, RecursionError):
                position = match.start()
                break
            parts.append(grammar[match.start() : position])
        elif match["string"]:
            parts.append(_ESCAPE_PATTERN.sub(_lower_escape, match["string"]))
        elif match["low"]:
            parts.append(f"{{{match['low']},{match['high']}}}")
        else:
            parts.append(match[0])
    return "".join(parts) + grammar[position:]


def _lower_escape(escape: re.Match[str]) -> str:
    return f"\\u00{escape[1]}" if escape[1] else escape[0]
