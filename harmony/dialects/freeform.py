"""Custom tools in dialects that write their arguments as JSON: raw text in a frame inside the dialect's own markers.

A patch or a script inside a JSON string costs a model many escapes and many mistakes. No model was trained on this
frame, so the prompt teaches it where there are such tools.
"""


def write_call(opener: str, closer: str) -> str:
    """Returns the template of a custom tool call, between the dialect's opening and closing markers of a call."""
    return f"{opener}\n<custom={{name}}>\n{{input}}\n</custom>\n{closer}".rstrip("\n")


def write_instructions(before: str, after: str) -> str:
    """Returns the instructions for the prompt that teach this frame."""
    call = write_call(before, after).replace("{name}", "NAME").replace("{input}", "raw text")
    return f"""# Freeform tools

These tools take raw text instead of JSON:

{{tools}}

To call one, write its name and the text as it is, without quotes or escapes:
{call}"""
