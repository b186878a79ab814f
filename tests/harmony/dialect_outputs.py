"""Output of every dialect: outputs of published models, random output under a grammar, and a check of text against one."""

import random
from typing import Any

from llguidance import LLMatcher

from antiphon.harmony.detection.detect import DIALECTS
from antiphon.harmony.format import ModelFormat
from antiphon.harmony.rendered_prompt import RenderedPrompt
from tests.harmony.grammar_helpers import load_llg_tokenizer

CALLING_DIALECTS = [dialect for dialect in DIALECTS.values() if dialect.calls]


def draw_output_under_grammar(
    model_format: ModelFormat, prompt_input: Any, rng: random.Random, max_tokens: int = 700
) -> list[int] | None:
    """Draws the output of a random model under the grammar. Returns None if it does not end within `max_tokens`."""
    grammar = model_format.build_grammar(RenderedPrompt((), "", False), prompt_input)
    assert grammar is not None
    matcher = LLMatcher(load_llg_tokenizer(model_format), LLMatcher.grammar_from_lark(grammar), log_level=0)
    stop_token = (*model_format.stop_ids, *model_format.encode("<|im_end|>"))[0]
    tokens: list[int] = []
    while len(tokens) < max_tokens and not matcher.is_stopped():
        bias = matcher.compute_logit_bias()
        allowed = [token for token, weight in enumerate(bias) if weight]
        stops = [token for token in allowed if token == stop_token]
        if stops and (stops == allowed or len(tokens) > 60 or rng.random() < 0.5):
            return tokens
        markers = [token for token in allowed if token >= 256 and token not in stops]
        # Few bytes lead to the end of a call, so the characters of calls are drawn more often.
        sources = [markers, [token for token in allowed if token < 128 and chr(token) in '"}]),>|<\n'], allowed]
        token = rng.choice(rng.choice([source for source in sources if source and source != stops]))
        if token in stops:
            continue
        assert matcher.consume_token(token)
        tokens.append(token)
    return tokens if matcher.is_stopped() else None


REAL_OUTPUTS = [
    # The API's form: the function inside a separate object.
    ("hermes", '<tool_call>\n{"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}\n</tool_call>', [("add", {"a": 1})]),
    ("hermes", '<tool_call>{"function": {"arguments": {"a": 1}, "name": "add"}, "type": "function"}</tool_call><tool_call>{"id": "x", "function": {"name": "now"}}</tool_call>', [("add", {"a": 1}), ("now", {})]),
    ("hermes", '<tool_call>{"function": {"name": "add", "arguments": "{\\"a\\": 1}"}, "type": "function"}', [("add", {"a": 1})]),
    ("llama3", '{"type": "function", "function": {"name": "add", "parameters": {"a": 1}}}', [("add", {"a": 1})]),
    ("mistral", '[TOOL_CALLS][{"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}, {"type": "function", "function": {"name": "now", "arguments": {}}, "id": "123456789"}]', [("add", {"a": 1}), ("now", {})]),
    ("xlam", '[{"function": {"name": "now"}}, {"function": {"name": "add", "arguments": {"a": 1}}}]', [("now", {}), ("add", {"a": 1})]),
    ("glm", "<tool_call>\nadd\n<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>", [("add", {"a": 1})]),
    ("glm", "<tool_call>add<arg_key>a</arg_key><arg_value>1</arg_value>\n<tool_call>add<arg_key>a</arg_key><arg_value>2</arg_value></tool_call>", [("add", {"a": 1}), ("add", {"a": 2})]),
    ("glm", "<tool_call>write<arg_key>text</arg_key><arg_value>\nx\n</arg_value>", [("write", {"text": "\nx\n"})]),
    ("glm", "<tool_call>write<arg_key>first name</arg_key><arg_value>x</arg_value></tool_call>", [("write", {"first name": "x"})]),
    ("qwen3-coder", "<tool_call>\n<function=write>\n<parameter=first name>\nx\n</parameter>\n<parameter=user's>\ny\n</parameter>\n</function>\n</tool_call>", [("write", {"first name": "x", "user's": "y"})]),
    ("minimax-m2", '<minimax:tool_call>\n<invoke name="write">\n<parameter name="text">x</parameter>\n</minimax:tool_call>', [("write", {"text": "x"})]),
    ("minimax-m2", "<minimax:tool_call><invoke name=add><parameter name='a'>1</parameter></invoke></minimax:tool_call>", [("add", {"a": 1})]),
    ("deepseek-v3.2", '<｜DSML｜tool><｜DSML｜invoke name="write"><｜DSML｜parameter name="text" string="true">x\n</｜DSML｜parameter></｜DSML｜invoke></｜DSML｜tool>', [("write", {"text": "x\n"})]),
    ("deepseek-v4", '<｜DSML｜ calls><｜DSML｜invoke name="add"><｜DSML｜parameter name="a">1</｜DSML｜parameter></｜DSML｜invoke></｜DSML｜ calls>', [("add", {"a": 1})]),
    # V4.1 has a blank in each tag. The successors of V3.2 also write a JSON object in place of the parameters.
    ("deepseek-v4", '<｜DSML｜ calls>\n<｜DSML｜ invoke name="write">\n<｜DSML｜ parameter name="text" string="true">x</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>', [("write", {"text": "x"})]),
    ("deepseek-v4.1", '<｜DSML｜tool_calls><｜DSML｜invoke name="add"><｜DSML｜parameter name="a">1</｜DSML｜parameter></｜DSML｜invoke></｜DSML｜tool_calls>', [("add", {"a": 1})]),
    ("deepseek-v3.2", '<｜DSML｜function_calls>\n<｜DSML｜invoke name="add">\n{"a": 1, "b": 2}\n</｜DSML｜invoke>\n<｜DSML｜invoke name="now">{}</｜DSML｜invoke></｜DSML｜function_calls>', [("add", {"a": 1, "b": 2}), ("now", {})]),
    ("deepseek-v4.1", '<｜DSML｜ calls><｜DSML｜ invoke name="write">{"text": "</｜DSML｜ invoke>"}</｜DSML｜ invoke></｜DSML｜ calls>', [("write", {"text": "</｜DSML｜ invoke>"})]),
    ("deepseek-v4", '<｜DSML｜tool_calls><｜DSML｜invoke name="apply_patch">{"input": "+a\\n"}</｜DSML｜invoke></｜DSML｜tool_calls>', [("apply_patch", "+a\n")]),
    ("qwen3-coder", '<tool_call>\n<function=add>\n{"a": 1}\n</function>\n</tool_call>', [("add", {"a": 1})]),
    ("glm", '<tool_call>add\n{"a": 1}\n</tool_call>', [("add", {"a": 1})]),
    ("kimi-k3", '<|open|>tools<|sep|><|open|>call tool="add" index="1"<|sep|><|open|>json type="object"<|sep|>{"a": 1}<|close|>json<|sep|><|close|>call<|sep|><|open|>call tool="now" index="2"<|sep|><|close|>call<|sep|><|close|>tools<|sep|>', [("add", {"a": 1}), ("now", {})]),
    ("kimi-k3", '<|open|>call tool="write" index="1"<|sep|><|open|>argument key="a&amp;b&quot;&amp;quot;" type="string"<|sep|>x&amp;y<|close|>argument<|sep|><|close|>call<|sep|>', [("write", {'a&b"&quot;': "x&amp;y"})]),
    ("deepseek-v3", '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>add\n{"a":1}<｜tool▁call▁end｜><｜tool▁calls▁end｜>', [("add", {"a": 1})]),
    ("deepseek-v3", '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>add<｜tool▁sep｜>{"a":1}<｜tool▁call▁end｜><｜tool▁calls▁end｜>', [("add", {"a": 1})]),
    ("kimi-k2", '<|tool_calls_section_begin|><|tool_call_begin|>functions.add:0<|tool_call_argument_begin|>{"a":1}<|tool_call_end|><|tool_call_begin|>functions.now:1<|tool_call_argument_begin|><|tool_call_end|><|tool_calls_section_end|>', [("add", {"a": 1}), ("now", {})]),
    ("mistral-v11", '[TOOL_CALLS]add[CALL_ID]abcdefghi[ARGS]{"a": 1}[TOOL_CALLS]now[ARGS]{}', [("add", {"a": 1}), ("now", {})]),
    ("mistral-v11", '<think>\nHm.</think>\n[TOOL_CALLS]add{"a": 1}[TOOL_CALLS]now[ARGS]{}', [("add", {"a": 1}), ("now", {})]),
    ("minimax-m3", ']<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="write">\n]<]minimax[>[<path>a]<]minimax[>[</path>\n]<]minimax[>[<tags>]<]minimax[>[<item>u]<]minimax[>[</item>]<]minimax[>[<item>v w]<]minimax[>[</item>]<]minimax[>[</tags>\n]<]minimax[>[<deep>]<]minimax[>[<x>1]<]minimax[>[</x>]<]minimax[>[<y>]<]minimax[>[<item>2]<]minimax[>[</item>]<]minimax[>[</y>]<]minimax[>[</deep>\n]<]minimax[>[<yes>true]<]minimax[>[</yes>]<]minimax[>[<yes>false]<]minimax[>[</yes>\n]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>', [("write", {"path": "a", "tags": ["u", "v w"], "deep": {"x": "1", "y": ["2"]}, "yes": True})]),
    ("minimax-m3", ']<]minimax[>[<invoke name="write">]<]minimax[>[<deep>]<]minimax[>[<item>a]<]minimax[>[</item>]<]minimax[>[<b>1]<]minimax[>[</b>]<]minimax[>[</deep>]<]minimax[>[<tags>["]<]minimax[>[</tags>"]]<]minimax[>[</tags>]<]minimax[>[</invoke>', [("write", {"deep": {"item": "a", "b": "1"}, "tags": ["]<]minimax[>[</tags>"]})]),
    ("qwen3-coder", '<function=write>\n<parameter=arguments>\n{"text": "a\\ud800b"}\n</parameter>\n</function>', [("write", {"text": "a\ufffdb"})]),
    ("qwen3-coder", "<function=write>\n<parameter=text>\nsee:\n<parameter=text>\nx\n</parameter>\n</function>", [("write", {"text": "see:\n<parameter=text>\nx"})]),
    ("qwen3-coder", '<function=write>\n<parameter=tags>\n["\n</parameter>\n</function>"]\n</parameter>\n</function>', [("write", {"tags": '["\n</parameter>\n</function>"]'})]),
    ("kimi-k3", '<|open|>call tool="write" index="1"<|sep|><|open|>argument key="tags" type="array"<|sep|>["<|close|>argument<|sep|><|close|>call<|sep|>"]<|close|>argument<|sep|><|close|>call<|sep|>', [("write", {"tags": ["<|close|>argument<|sep|><|close|>call<|sep|>"]})]),
    ("kimi-k3", '<|open|>response<|sep|><|close|>response<|sep|><|open|>tools<|sep|><|open|>call tool="now" index="1"<|sep|><|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|>', [("now", {})]),
    ("kimi-k2", '<|tool_call_begin|>functions.add:0{"a": 1}<|tool_call_end|>', [("add", {"a": 1})]),
    ("deepseek-v3.2", '<｜DSML｜function_calls><｜DSML｜invoke name="add"><｜DSML｜parameter name="arguments" string="false">{"a": 1, "b": 2}</｜DSML｜parameter></｜DSML｜invoke></｜DSML｜function_calls>', [("add", {"a": 1, "b": 2})]),
    ("deepseek-v3.2", '<｜DSML｜function_calls><｜DSML｜invoke name="add"><｜DSML｜parameter name="arguments" string="false">{}</｜DSML｜parameter><｜DSML｜parameter name="a" string="false">1</｜DSML｜parameter></｜DSML｜invoke></｜DSML｜function_calls>', [("add", {"a": 1})]),
    ("minicpm5", '<function name="write"><param name="text"><![CDATA[a ]]> b</param> </function>]]></param><param name="path"><![CDATA[x]]>\n</param></function>', [("write", {"text": "a ]]> b</param> </function>", "path": "x"})]),
    ("minicpm5", '<function name="write"><param name="tags"><![CDATA[["u", "</param>"]]]></param><param name="text"><![CDATA[]]></param></function>', [("write", {"tags": ["u", "</param>"], "text": ""})]),
    ("minicpm5", '<function name="apply_patch"><param name="input"><![CDATA[+a < b\n]]></param></function>', [("apply_patch", "+a < b\n")]),
    ("jamba", '<tool_calls>\n{"name": "add", "arguments": {"a": 1}}\n{"name": "now", "arguments": {}}\n</tool_calls>', [("add", {"a": 1}), ("now", {})]),
    ("minimax-m1", '<tool_calls>\n[{"name": "add", "arguments": {"a": 1}}, {"name": "now", "arguments": {}}]\n</tool_calls>', [("add", {"a": 1}), ("now", {})]),
    ("phi4-mini", '<|tool_call|>{"name": "add", "arguments": {"a": 1}}<|/tool_call|><|tool_call|>{"name": "now", "arguments": {}}<|/tool_call|>', [("add", {"a": 1}), ("now", {})]),
    ("nemotron-nano-v2", '<TOOLCALL>[{"name": "add", "arguments": "{\\"a\\": 1}"}]</TOOLCALL>', [("add", {"a": 1})]),
    ("hy3", "<tool_calls:opensource>\n<tool_call:opensource>add\n<arg_key:opensource>a</arg_key:opensource>\n<arg_value:opensource>1</arg_value:opensource>\n</tool_call:opensource>\n<tool_call:opensource>now\n</tool_call:opensource>\n</tool_calls:opensource>", [("add", {"a": 1}), ("now", {})]),
    ("hy3-preview", "<tool_call>add<tool_sep><arg_key>a</arg_key><arg_value>1</arg_value></tool_call>", [("add", {"a": 1})]),
    ("harmony", ' to=functions.add<|channel|>commentary json<|message|>{"a": 1}', [("add", {"a": 1})]),
    ("harmony", '<|channel|>commentary to=functions.add<|message|>{"a": 1}', [("add", {"a": 1})]),
    ("gigachat3.0", 'function call<|role_sep|>\n{"name": "add", "arguments": {"a": 1}}<|message_sep|>\n\n', [("add", {"a": 1})]),
    ("gemma3", "```tool_code\n[add(a=1), now()]\n```", [("add", {"a": 1}), ("now", {})]),
    ("functiongemma", '<start_function_call>call:write{yes:<escape>true<escape>,path:<escape>7<escape>,tags:<escape>["u"]<escape>}<end_function_call>', [("write", {"yes": True, "path": "7", "tags": ["u"]})]),
    ("mistral", '[TOOL_CALLS] [{"name": "add", "arguments": {"a": 1}}, {"arguments": {}, "name": "now"}]', [("add", {"a": 1}), ("now", {})]),
    ("llama3", '{"name": "add", "parameters": {"a": 1}}; {"name": "now", "parameters": {}}', [("add", {"a": 1}), ("now", {})]),
    ("llama3", '{"name": "add", "parameters": {"a": 1}}, {"name": "now", "parameters": {}}', [("add", {"a": 1}), ("now", {})]),
    ("llama3", '<|python_tag|>{"name": "add", "parameters": {"a": 1}},\n{"name": "now", "parameters": {}}', [("add", {"a": 1}), ("now", {})]),
    ("llama3", '{"type": "function", "name": "add", "parameters": {"a": 1}}', [("add", {"a": 1})]),
    ("llama4-pythonic", '{"name": "add", "parameters": {"a": 1}}', [("add", {"a": 1})]),
    ("llama4-pythonic", '<|python_start|><|python_end|>{"name": "add", "parameters": {"a": 1}}', [("add", {"a": 1})]),
    ("llama4-pythonic", '<|python_start|>{"name": "add", "parameters": {"a": 1}}<|python_end|>', [("add", {"a": 1})]),
    ("llama4-pythonic", "[add(a=1, b=2), write(path='x', yes=True, tags=['u'], mode=None)]", [("add", {"a": 1, "b": 2}), ("write", {"path": "x", "yes": True, "tags": ["u"], "mode": None})]),
    ("olmo3", "<function_calls>\nadd(a=1)\nwrite(text='''x\n\"y\"''')\n</function_calls>", [("add", {"a": 1}), ("write", {"text": 'x\n"y"'})]),
    ("lfm2", r"""<|tool_call_start|>[write(text="\ud83d\ude00 \033[1m \x41 \'", deep={"a\"b": (1, 2)})]<|tool_call_end|>""", [("write", {"text": "😀 \033[1m A '", "deep": {'a"b': [1, 2]}})]),
    ("gemma4", '<|tool_call>call:write{path:<|"|>a "b"<|"|>,deep:{x:[1,2,{y:<|"|>z<|"|>}]},yes:true}<tool_call|>', [("write", {"path": 'a "b"', "deep": {"x": [1, 2, {"y": "z"}]}, "yes": True})]),
    ("gemma4", r"""<|tool_call>call:write{path:"a \"b\" \\ c",text:"one\ntwo \u00e9",deep:{"k\"":"\t"}}<tool_call|>""", [("write", {"path": 'a "b" \\ c', "text": "one\ntwo é", "deep": {'k"': "\t"}})]),
    ("gemma4", r"""<|tool_call>call:write{path:<|"|>a \n b<|"|>}<tool_call|>""", [("write", {"path": r"a \n b"})]),
    # A comma after the last member or element.
    ("hermes", '<tool_call>\n{"name": "add", "arguments": {"a": 1},}\n</tool_call>', [("add", {"a": 1})]),
    ("hermes", '<tool_call>\n{"name": "add", "arguments": {"a": 1}, "id": "x", }\n</tool_call>', [("add", {"a": 1})]),
    ("hermes", '<tool_call>\n{"function": {"name": "add", "arguments": {"a": 1},},}\n</tool_call>', [("add", {"a": 1})]),
    ("mistral", '[TOOL_CALLS][{"name": "add", "arguments": {"a": 1},}, {"name": "now", "arguments": {}}, ]', [("add", {"a": 1}), ("now", {})]),
    ("apertus", '<|tools_prefix|>[{"add": {"a": 1},}, ]<|tools_suffix|>', [("add", {"a": 1})]),
    ("pythonic", "[add(a=1,), now(),]", [("add", {"a": 1}), ("now", {})]),
    # The first of two arguments of one name counts.
    ("lfm2", '<|tool_call_start|>[write(path="a", path=["b", {"c": "d"}], deep={"x": 1, "x": (2,)})]<|tool_call_end|>', [("write", {"path": "a", "deep": {"x": 1}})]),
    ("gemma4", '<|tool_call>call:write{path:<|"|>a<|"|>,path:<|"|>b<|"|>,deep:{x:1,x:[2]}}<tool_call|>', [("write", {"path": "a", "deep": {"x": 1}})]),
    ("functiongemma", "<start_function_call>call:write{yes:<escape>true<escape>,yes:<escape>false<escape>}<end_function_call>", [("write", {"yes": True})]),
    ("gemma4", '<|tool_call>call:apply_patch{input:<|"|>+a<|"|>,input:<|"|>+b<|"|>,}<tool_call|>', [("apply_patch", "+a")]),
    ("lfm2", "<|tool_call_start|>[apply_patch(input='+a', input='+b')]<|tool_call_end|>", [("apply_patch", "+a")]),
    ("qwen3-coder", '<function=write>\n<parameter=arguments>\n{"text": "a", "text": "b"}\n</parameter>\n</function>', [("write", {"text": "a"})]),
    # An object in place of the tags.
    ("deepseek-v4", '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="add">\n{"a": 1}\n</｜DSML｜invoke>\n<｜DSML｜invoke name="now">{}</｜DSML｜invoke>\n</｜DSML｜tool_calls>', [("add", {"a": 1}), ("now", {})]),
    ("deepseek-v3.2", '<｜DSML｜function_calls><｜DSML｜invoke name="apply_patch">{"input": "+</｜DSML｜invoke>"}</｜DSML｜invoke></｜DSML｜function_calls>', [("apply_patch", "+</｜DSML｜invoke>")]),
    ("qwen3-coder", '<tool_call>\n<function=add>\n{"a": 1}\n</function>\n</tool_call>', [("add", {"a": 1})]),
    ("glm", '<tool_call>add\n{"a": 1}\n</tool_call>', [("add", {"a": 1})]),
    ("minicpm5", '<function name="write"><param name="text"><![CDATA[a ] b ]] c]]></param></function>', [("write", {"text": "a ] b ]] c"})]),
]  # fmt: skip
