"""Hermes, Qwen2.5 and Qwen3: one JSON object with name and arguments in `<tool_call>`, reasoning in `<think>`.

Custom tools get a raw frame inside the same markers, since a patch or a script inside a JSON string costs a model many
escapes and many mistakes.
"""

from harmony.dialect import Dialect
from harmony.frames import JsonFrame, RawFrame

OPEN, CLOSE = "<tool_call>", "</tool_call>"

HERMES = Dialect(
    name="hermes",
    models="Hermes, Qwen2.5, Qwen3, Granite 4",
    signs=("<tool_call>",),
    think=("<think>", "</think>"),
    frames=(JsonFrame(open=OPEN, close=CLOSE), RawFrame(open=OPEN, close=CLOSE)),
    raw="<tool_call>\n<custom={name}>\n{input}\n</custom>\n</tool_call>",
    lesson="""# Freeform tools

These tools take raw text instead of JSON:

{tools}

To call one, write its name and the text as it is, without quotes or escapes:
<tool_call>
<custom=NAME>
raw text
</custom>
</tool_call>""",
)
