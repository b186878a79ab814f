"""Models as folders, with chat templates that make the demands of published ones, and the output such models write."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

TEMPLATES_FOLDER = Path(__file__).parent / "templates"
CHATML_TOKENS = ("<|im_start|>", "<|im_end|>")
DEEPSEEK_TOKENS = tuple(
    f"<｜{text}｜>"
    for text in (
        "User", "Assistant", "end▁of▁sentence", "tool▁calls▁begin", "tool▁calls▁end", "tool▁call▁begin",
        "tool▁call▁end", "tool▁sep", "tool▁outputs▁begin", "tool▁outputs▁end", "tool▁output▁begin", "tool▁output▁end",
    )
)  # fmt: skip
HY3_TOKENS = tuple(
    tag.format(f"{name}:opensource")
    for name in ("think", "tool_calls", "tool_call", "tool_sep", "arg_key", "arg_value", "tool_response")
    for tag in ("<{}>", "</{}>")
)
SOLAR_TOKENS = tuple(
    f"<|{text}|>"
    for text in (
        "begin", "end", "content", "think", "flush", "calls", "tool_calls", "tool_call:begin", "tool_call:name",
        "tool_call:args", "tool_call:end", "tool_response",
    )
)  # fmt: skip
SOLAR2_TOKENS = tuple(
    f"<|{part}:{text}|>"
    for part, texts in {
        "im": ("start", "content", "end"),
        "think": ("start", "end"),
        "tool_call": ("start", "end"),
        "tool_arg": ("start", "value", "end"),
    }.items()
    for text in texts
)
HARMONY_TOKENS = tuple(f"<|{text}|>" for text in ("start", "end", "message", "channel", "constrain", "return", "call"))


@dataclass(frozen=True)
class TemplateModel:
    """A model: its template, and the output that calls `find_weather` for Oslo and then for Bergen."""

    name: str
    dialect: str
    output: str = ""
    """Output with both calls; empty if the model calls no tools."""
    tokens: tuple[str, ...] = ()
    model_type: str = "llama"
    legacy_file: bool = False
    """True if the template is in `chat_template.json`."""

    def write_folder(self, folder: Path) -> Path:
        """Writes the model's small files."""
        template = self._read_template()
        return write_model_files(folder, template, self.tokens, self.model_type, legacy_file=self.legacy_file)

    def _read_template(self) -> str | list[dict[str, str]]:
        """Returns the template, or the named ones of a model that has no other."""
        if (file := TEMPLATES_FOLDER / f"{self.name}.jinja").is_file():
            return file.read_text(encoding="utf-8")
        names = ("default", "tool_use")
        files = {name: TEMPLATES_FOLDER / f"{self.name}.{name}.jinja" for name in names}
        return [{"name": name, "template": file.read_text(encoding="utf-8")} for name, file in files.items()]


def write_model_files(
    folder: Path,
    template: object,
    tokens: Iterable[str],
    model_type: str,
    *,
    words: Iterable[str] = (),
    legacy_file: bool = False,
) -> Path:
    """Writes the small files of a model whose vocabulary has bytes and the given control tokens. Returns the folder.

    `words`: added tokens that are not special.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={char: index for index, char in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>", "</s>", *tokens])
    tokenizer.add_tokens(list(words))
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"bos_token": "<s>", "eos_token": "</s>"}
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    if legacy_file:
        (folder / "chat_template.json").write_text(json.dumps({"chat_template": template}))
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    else:
        (folder / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": template}))
    return folder


_OSLO, _BERGEN = '{"city": "Oslo", "days": 2}', '{"city": "Bergen", "days": 3}'
_HERMES_CALLS = (
    f'<tool_call>\n{{"name": "find_weather", "arguments": {_OSLO}}}\n</tool_call>\n'
    f'<tool_call>\n{{"name": "find_weather", "arguments": {_BERGEN}}}\n</tool_call>'
)
_ARRAY = f'[{{"name": "find_weather", "arguments": {_OSLO}}}, {{"name": "find_weather", "arguments": {_BERGEN}}}]'
_PYTHONIC = '[find_weather(city="Oslo", days=2), find_weather(city="Bergen", days=3)]'


def _hy3_call(city: str, days: int) -> str:
    arguments = "".join(
        f"<arg_key:opensource>{key}</arg_key:opensource>\n<arg_value:opensource>{value}</arg_value:opensource>\n"
        for key, value in (("city", city), ("days", days))
    )
    return f"<tool_call:opensource>find_weather<tool_sep:opensource>\n{arguments}</tool_call:opensource>\n"


_R1_OUTPUT = (
    "Two cities.\n</think>\n\n<｜tool▁calls▁begin｜>"
    f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>find_weather\n```json\n{_OSLO}\n```<｜tool▁call▁end｜>\n"
    f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>find_weather\n```json\n{_BERGEN}\n```<｜tool▁call▁end｜>"
    "<｜tool▁calls▁end｜>"
)


def _invoke_calls(mark: str) -> str:
    """Returns the calls in tags that begin with a mark."""
    return "\n".join(
        f'<{mark}invoke name="find_weather">\n<{mark}parameter name="city" string="true">{city}</{mark}parameter>\n'
        f'<{mark}parameter name="days" string="false">{days}</{mark}parameter>\n</{mark}invoke>'
        for city, days in (("Oslo", 2), ("Bergen", 3))
    )


_SOLAR2_CALLS = "".join(
    f"<|tool_call:start|>find_weather\n<|tool_arg:start|>city<|tool_arg:value|>{city}<|tool_arg:end|>\n"
    f"<|tool_arg:start|>days<|tool_arg:value|>{days}<|tool_arg:end|>\n<|tool_call:end|>"
    for city, days in (("Oslo", 2), ("Bergen", 3))
)
TEMPLATE_MODELS = (
    TemplateModel("mistral-v3", "mistral", f"[TOOL_CALLS] {_ARRAY}", ("[INST]", "[/INST]", "[TOOL_CALLS]")),
    TemplateModel(
        "mistral-v11",
        "mistral-v11",
        f"[TOOL_CALLS]find_weather[ARGS]{_OSLO}[TOOL_CALLS]find_weather[ARGS]{_BERGEN}",
        ("[INST]", "[/INST]", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
    ),
    TemplateModel("mixtral-v0.1", "plain"),
    TemplateModel("deepseek-r1", "deepseek-v3", _R1_OUTPUT, DEEPSEEK_TOKENS),
    TemplateModel("deepseek-r1-distill", "deepseek-v3", _R1_OUTPUT, DEEPSEEK_TOKENS, "qwen2"),
    TemplateModel(
        "deepseek-v3.1",
        "deepseek-v3.1",
        f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>find_weather<｜tool▁sep｜>{_OSLO}<｜tool▁call▁end｜>"
        f"<｜tool▁call▁begin｜>find_weather<｜tool▁sep｜>{_BERGEN}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        DEEPSEEK_TOKENS,
    ),
    TemplateModel(
        "llama-3.1",
        "llama3",
        f'{{"name": "find_weather", "parameters": {_OSLO}}}; {{"name": "find_weather", "parameters": {_BERGEN}}}',
        ("<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>"),
    ),
    TemplateModel("gemma-2", "gemma3", _PYTHONIC, ("<start_of_turn>", "<end_of_turn>"), "gemma2"),
    TemplateModel(
        "gemma-3", "gemma3", f"```tool_code\n{_PYTHONIC}\n```", ("<start_of_turn>", "<end_of_turn>"), "gemma3_text"
    ),
    TemplateModel("hermes-2-pro", "hermes", _HERMES_CALLS, CHATML_TOKENS),
    TemplateModel(
        "lfm2",
        "lfm2",
        f"<|tool_call_start|>{_PYTHONIC}<|tool_call_end|>",
        (*CHATML_TOKENS, "<|tool_call_start|>", "<|tool_call_end|>", "<|tool_list_start|>", "<|tool_list_end|>"),
    ),
    TemplateModel(
        "lfm2.5",
        "lfm2",
        f"<|tool_call_start|>{_PYTHONIC}<|tool_call_end|>Looking.",
        (*CHATML_TOKENS, "<|tool_call_start|>", "<|tool_call_end|>"),
    ),
    TemplateModel(
        "nemotron-nano-v2",
        "nemotron-nano-v2",
        f"Two cities.\n</think>\n\n<TOOLCALL>{_ARRAY}</TOOLCALL>\n",
        ("<SPECIAL_10>", "<SPECIAL_11>", "<SPECIAL_12>"),
    ),
    TemplateModel(
        "phi-4-mini",
        "phi4-mini",
        f"<|tool_call|>{_ARRAY}<|/tool_call|>",
        (
            "<|system|>",
            "<|user|>",
            "<|assistant|>",
            "<|end|>",
            "<|tool|>",
            "<|/tool|>",
            "<|tool_call|>",
            "<|/tool_call|>",
        ),
    ),
    TemplateModel(
        "phi-4-mini-repackaged",
        "phi4-mini",
        f"functools{_ARRAY}",
        (
            "<|system|>",
            "<|user|>",
            "<|assistant|>",
            "<|end|>",
            "<|tool|>",
            "<|/tool|>",
            "<|tool_call|>",
            "<|/tool_call|>",
        ),
    ),
    TemplateModel("smollm3", "hermes", f"<think>\nTwo cities.\n</think>\n{_HERMES_CALLS}", CHATML_TOKENS, "smollm3"),
    TemplateModel("smollm3-repackaged", "hermes", _HERMES_CALLS, CHATML_TOKENS, "smollm3"),
    TemplateModel(
        "hy3",
        "hy3",
        f"<tool_calls:opensource>\n{_hy3_call('Oslo', 2)}{_hy3_call('Bergen', 3)}</tool_calls:opensource>",
        HY3_TOKENS,
    ),
    TemplateModel(
        "solar-open",
        "solar-open",
        "<|think|>Two cities.<|end|><|begin|>assistant<|tool_calls|>"
        f"<|tool_call:begin|>a1b2c3d4e5<|tool_call:name|>find_weather<|tool_call:args|>{_OSLO}<|tool_call:end|>"
        f"<|tool_call:begin|>f6g7h8i9j0<|tool_call:name|>find_weather<|tool_call:args|>{_BERGEN}<|tool_call:end|><|calls|>",
        SOLAR_TOKENS,
    ),
    TemplateModel(
        "gigachat-3.0",
        "gigachat3.0",
        f'<|message_sep|>\n\nfunction call<|role_sep|>\n{{"name": "find_weather", "arguments": {_OSLO}}}<|message_sep|>\n\n'
        f'function call<|role_sep|>\n{{"name": "find_weather", "arguments": {_BERGEN}}}<|message_sep|>\n\n',
        ("<|message_sep|>", "<|role_sep|>"),
    ),
    TemplateModel(
        "llm-jp-4",
        "harmony",
        "<|channel|>analysis<|message|>Two cities.<|end|>"
        f"<|start|>assistant<|channel|>commentary to=functions.find_weather <|constrain|>json<|message|>{_OSLO}<|call|>"
        f"<|start|>assistant to=functions.find_weather<|channel|>commentary json<|message|>{_BERGEN}<|call|>",
        HARMONY_TOKENS,
    ),
    TemplateModel(
        "minicpm5",
        "minicpm5",
        "Two cities.\n</think>\n"
        '<function name="find_weather"><param name="city"><![CDATA[Oslo]]></param><param name="days">2</param></function>\n'
        '<function name="find_weather"><param name="city">Bergen</param><param name="days"><![CDATA[3]]></param></function>',
        CHATML_TOKENS,
    ),
    TemplateModel(
        "minimax-m1",
        "minimax-m1",
        f'<tool_calls>\n{{"name": "find_weather", "arguments": {_OSLO}}}\n'
        f'{{"name": "find_weather", "arguments": {_BERGEN}}}\n</tool_calls>',
        ("<beginning_of_sentence>", "<end_of_sentence>"),
    ),
    TemplateModel("qwen3", "hermes", f"<think>\nTwo cities.\n</think>\n\n{_HERMES_CALLS}", CHATML_TOKENS),
    TemplateModel(
        "glm-4.5",
        "glm",
        "Two cities.</think>\n<tool_call>find_weather\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n"
        "<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>\n<tool_call>find_weather\n"
        "<arg_key>city</arg_key>\n<arg_value>Bergen</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n"
        "</tool_call>",
        ("<|user|>", "<|assistant|>", "<|observation|>", "<|system|>"),
    ),
    TemplateModel(
        "deepseek-v4.1",
        "deepseek-v4.1",
        "Two cities.</think>\n\n<｜DSML｜ calls>\n" + _invoke_calls("｜DSML｜ ") + "\n</｜DSML｜ calls>",
        ("<｜User｜>", "<｜Assistant｜>", "<｜end▁of▁sentence｜>"),
    ),
    TemplateModel(
        "gigachat-3.5",
        "gigachat3.5",
        "<think>Two cities.</think>\n\n<｜GCML｜tool_calls>\n" + _invoke_calls("｜GCML｜") + "\n</｜GCML｜tool_calls>",
        ("<|message_sep|>", "<|role_sep|>"),
    ),
    TemplateModel("solar-open-2", "solar-open-2", "Two cities.<|think:end|>" + _SOLAR2_CALLS, SOLAR2_TOKENS),
    TemplateModel(
        "hy4",
        "hy3",
        f"<tool_calls:6124c78e>\n{_hy3_call('Oslo', 2)}{_hy3_call('Bergen', 3)}</tool_calls:6124c78e>".replace(
            ":opensource", ":6124c78e"
        ).replace("<tool_sep:6124c78e>", ""),
        tuple(token.replace(":opensource", ":6124c78e") for token in HY3_TOKENS if "tool_sep" not in token),
    ),
    TemplateModel(
        "apriel-1.5",
        "apriel",
        f"Here are my reasoning steps:\nTwo cities.\n[BEGIN FINAL RESPONSE]\n<tool_calls>{_ARRAY}</tool_calls>\n"
        "[END FINAL RESPONSE]",
        ("<|system|>", "<|user|>", "<|assistant|>", "<|tool_result|>", "<|end|>"),
    ),
    TemplateModel("smolvlm", "plain", tokens=("<|im_start|>", "<end_of_utterance>"), legacy_file=True),
    TemplateModel("llama-2", "plain", tokens=("[INST]", "[/INST]")),
)
