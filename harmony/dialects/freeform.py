"""Custom tools in dialects that write their arguments as JSON: raw text in a frame inside the dialect's own markers.

A patch or a script inside a JSON string costs a model many escapes and many mistakes. No model was trained on this
frame, so the prompt teaches it where there are such tools.
"""


def write_call(before: str, after: str) -> str:
    """A call of a custom tool, between what opens and what closes a call in this dialect."""
    return f"{before}\n<custom={{name}}>\n{{input}}\n</custom>\n{after}".rstrip("\n")


def write_instructions(before: str, after: str) -> str:
    """What a model is told of it."""
    call = write_call(before, after).replace("{name}", "NAME").replace("{input}", "raw text")
    return f"""# Freeform tools

These tools take raw text instead of JSON:

{{tools}}

To call one, write its name and the text as it is, without quotes or escapes:
{call}"""
