"""How a snapshot tells a stream: one line an event, ids by order of appearance, keys that never vary left out."""

import json
import re
from typing import Any

_ID = re.compile(r"\b(resp|rs|msg|fc|ctc|cmp|call|chatcmpl)[_-][0-9a-z]+\b")


class Names:
    """Gives every id the next number of its kind."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}
        self._count: dict[str, int] = {}

    def tame(self, text: str) -> str:
        return _ID.sub(lambda found: self._name(found[0], found[1]), text)

    def _name(self, found: str, kind: str) -> str:
        if found not in self._known:
            self._count[kind] = self._count.get(kind, 0) + 1
            self._known[found] = f"{kind}_{self._count[kind]}"
        return self._known[found]


def event(told: dict[str, Any], names: Names) -> str:
    """A Responses event in one line."""
    kind = told["type"].removeprefix("response.")
    return names.tame(f"{told['sequence_number']:>3}  {kind:<31} {_place(told)}{_payload(kind, told)}").rstrip()


def _place(told: dict[str, Any]) -> str:
    if "output_index" not in told:
        return ""
    inner = told.get("content_index", told.get("summary_index"))
    return f"[{told['output_index']}{'' if inner is None else f'.{inner}'}] " + (
        f"{told['item_id']} " if "item_id" in told else ""
    )


def _payload(kind: str, told: dict[str, Any]) -> str:
    if "response" in told:
        return response(told["response"])
    for key in ("delta", "text", "refusal", "arguments", "input"):
        if key in told:
            scored = f"  {_scores(told['logprobs'])}" if told.get("logprobs") else ""
            return _json(told[key]) + scored
    if "item" in told:
        return item(told["item"])
    if "part" in told:
        return part(told["part"])
    return _json({key: value for key, value in told.items() if key not in ("type", "sequence_number")})


def response(told: dict[str, Any]) -> str:
    """Status, what went wrong, usage; then the output, if there is any, an item a line."""
    words = [told["status"]]
    words += [_json(told[key]) for key in ("incomplete_details", "error") if told[key]]
    if usage := told["usage"]:
        reasoning = usage["output_tokens_details"]["reasoning_tokens"]
        words.append(
            f"tokens {usage['input_tokens']} + {usage['output_tokens']}"
            + (f" (reasoning {reasoning})" if reasoning else "")
        )
    return "  ".join(words) + "".join(f"\n     - {item(one)}" for one in told["output"])


def item(told: dict[str, Any]) -> str:
    words = [told["type"], told["id"], told.get("status", "-")]
    words += [f"{key}={told[key]}" for key in ("phase", "namespace", "name") if key in told]
    words += [f"call={told['call_id']}"] if "call_id" in told else []
    words += [_json(told[key]) for key in ("arguments", "input") if key in told]
    words += [part(one) for one in [*told.get("content", []), *told.get("summary", [])]]
    return " ".join(words)


def part(told: dict[str, Any]) -> str:
    return f"{told['type']} {_json(told.get('text', told.get('refusal')))}"


def chunk(told: dict[str, Any], names: Names) -> str:
    """A chat chunk in one line."""
    if "error" in told:
        return f"     error {_json(told['error'])}"
    lines = []
    for choice in told["choices"]:
        scored = f"  {_scores(choice['logprobs']['content'])}" if choice["logprobs"] else ""
        ending = f"  finish_reason={choice['finish_reason']}" if choice["finish_reason"] else ""
        lines.append(f"  [{choice['index']}]  {_json(choice['delta'])}{scored}{ending}")
    if told.get("usage"):
        lines.append(f"  usage  {_json(told['usage'])}")
    return names.tame("\n".join(lines))


def _scores(logprobs: list[dict[str, Any]]) -> str:
    return " ".join(f"{entry['token']!r}:{entry['logprob']}" for entry in logprobs)


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
