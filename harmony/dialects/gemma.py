"""FunctionGemma and Gemma 4: arguments in a private object notation, with markers around strings.

Gemma 1 to 3 have no syntax of their own for calls; the prompt teaches them Google's `tool_code` blocks.
"""

from antiphon.harmony.calls.pythonic import BraceCall, PythonicCall
from antiphon.harmony.dialect import Dialect

GEMMA4 = Dialect(
    name="gemma4",
    models="Gemma 4",
    template_markers=("<|tool_call>",),
    think=("<|channel>thought\n", "<channel|>"),
    calls=(BraceCall(open="<|tool_call>", close="<tool_call|>"),),
    stop=("<turn|>", "<end_of_turn>", "<eos>"),
    freeform=("<|tool_call>", "<tool_call|>"),
)
FUNCTIONGEMMA = Dialect(
    name="functiongemma",
    models="FunctionGemma",
    template_markers=("<start_function_call>",),
    calls=(BraceCall(open="<start_function_call>", close="<end_function_call>", quote="<escape>"),),
    stop=("<end_of_turn>", "<eos>"),
    freeform=("<start_function_call>", "<end_function_call>"),
)
GEMMA3 = Dialect(
    name="gemma3",
    models="Gemma 1, 2, 3",
    template_markers=("<start_of_turn>",),
    calls=(
        PythonicCall(open="```tool_code", close="```", separator="\n", brackets=False),
        PythonicCall(open="["),
    ),
    stop=("<end_of_turn>", "<eos>"),
    freeform=("```tool_code", "```"),
)
