"""Required tool calls over HTTP from tiny random models, each of another architecture and dialect.

Their weights are random, so a call is valid only because of the grammar.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM

from antiphon.app.registry.model_registry import ModelRegistry, ServedModel
from antiphon.engine.options import EngineOptions
from antiphon.engine.process.client import ProcessEngine
from antiphon.harmony.detection import detect
from antiphon.harmony.detection.detect import DIALECTS
from antiphon.harmony.dialect import Dialect
from tests.clients.sdk_helpers import post
from tests.counts import FULL_COUNTS
from tests.engine.threaded_engine import ThreadWorker
from tests.engine.tiny_models import BASE_CONFIG
from tests.invariants import check_stream
from tests.progress import HANG_TIMEOUT_S
from tests.serving import RunningServer, serve

NUM_REQUESTS = 25 if FULL_COUNTS else 2
HEAD_CONFIG = {"head_dim": 8}
MODEL_CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "hermes": ("Qwen3Config", HEAD_CONFIG),
    "qwen3-coder": (
        "Qwen3MoeConfig",
        {**HEAD_CONFIG, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
    ),
    "llama3": ("LlamaConfig", {}),
    "mistral-v11": ("MistralConfig", {}),
    "lfm2": ("Lfm2Config", {"layer_types": ["conv", "full_attention"]}),
    "functiongemma": ("Gemma2Config", HEAD_CONFIG),
    "olmo3": ("Olmo3Config", {}),
    "granite3": ("GraniteConfig", {}),
    "glm": ("Glm4Config", HEAD_CONFIG),
    "phi4-mini": ("Phi3Config", {}),
    "cohere": ("CohereConfig", {}),
    "deepseek-v3.2": ("MixtralConfig", {"num_local_experts": 4}),
}
PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "count": {"type": "integer", "minimum": 0, "maximum": 99},
        "word": {"type": "string", "maxLength": 6},
        "kind": {"type": "string", "enum": ["red", "green"]},
        "code": {"type": "string", "pattern": "^[a-c]{2}[0-9]$"},
        "on": {"type": "boolean"},
        "list": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9}, "maxItems": 3},
    },
    "required": ["count", "word", "kind", "code", "on", "list"],
    "additionalProperties": False,
}
EMPTY_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
TOOLS: Any = [
    {"type": "function", "name": "first", "parameters": PARAMETERS, "strict": True},
    {"type": "function", "name": "second", "parameters": EMPTY_PARAMETERS, "strict": True},
]


def save_random_model(folder: Path, dialect: Dialect, config: str, options: dict[str, Any]) -> Path:
    """Saves a random model. Its tokenizer has the dialect's markers, its chat template those that detection looks for."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    markers = [marker for marker in dialect.all_markers if detect._LIKE_A_TOKEN.fullmatch(marker)]
    tokenizer.add_tokens([AddedToken(marker, normalized=False) for marker in markers])
    tokenizer.add_special_tokens([AddedToken("<|end|>", special=True), AddedToken("<|turn|>", special=True)])
    end = tokenizer.token_to_id("<|end|>")
    tokenizer.save(str(folder / "tokenizer.json"))
    template = f"{{#- {' '.join(dialect.template_markers)} -#}}{{% for m in messages %}}<|turn|>{{{{ m.role }}}} {{{{ m.content }}}}{{% endfor %}}<|turn|>"
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template, "eos_token": "<|end|>"}))
    torch.manual_seed(3)
    config_values = {
        **BASE_CONFIG,
        **options,
        "vocab_size": tokenizer.get_vocab_size(),
        "eos_token_id": end,
        "bos_token_id": end,
        "pad_token_id": end,
        "max_position_embeddings": 4096,
    }
    model: Any = AutoModelForCausalLM.from_config(getattr(transformers, config)(**config_values))  # type: ignore[no-untyped-call]
    model.save_pretrained(folder)
    return folder


@contextmanager
def serve_model(folder: Path) -> Iterator[tuple[RunningServer, str]]:
    loaded = detect.load_format(folder)
    engine = ProcessEngine(folder, EngineOptions(threads=1, kv_cache_gib=0.05), spawn=ThreadWorker)
    model = ServedModel(names=("tiny",), engine=engine, format=loaded.format, created=1)
    with serve(ModelRegistry([model])) as server:
        yield server, loaded.reason


@pytest.mark.parametrize("name", MODEL_CONFIGS if FULL_COUNTS else ["glm"])
@pytest.mark.timeout(600)
def test_required_tool_call_is_valid_in_every_dialect(name: str, tmp_path: Path) -> None:
    config, options = MODEL_CONFIGS[name]
    with serve_model(save_random_model(tmp_path, DIALECTS[name], config, options)) as (server, reason):
        assert reason.startswith(f"dialect {name}: its chat template writes")
        completed = 0
        for number in range(NUM_REQUESTS):
            body = {
                "model": "tiny", "input": "Hi", "tools": TOOLS, "tool_choice": "required", "stream": True, "seed": number,
                "temperature": 1, "max_output_tokens": 900, "reasoning": {"effort": "none"}, "parallel_tool_calls": False,
            }  # fmt: skip
            reply = post(f"{server.url}/responses", json=body, timeout=HANG_TIMEOUT_S)
            assert reply.status_code == 200, reply.text
            response = check_stream(
                [json.loads(line[6:]) for line in reply.text.splitlines() if line.startswith("data: {")]
            )
            if response["status"] != "completed":
                assert response["incomplete_details"] == {"reason": "max_output_tokens"}, response
                continue
            completed += 1
            (call,) = [item for item in response["output"] if item["type"] == "function_call"]
            jsonschema.validate(
                json.loads(call["arguments"]), PARAMETERS if call["name"] == "first" else EMPTY_PARAMETERS
            )
    print(f"{name} on {config.removesuffix('Config')}: {completed} of {NUM_REQUESTS} complete, all of them valid")
    assert completed >= 0.95 * NUM_REQUESTS - 0.5
