"""Grammar-constrained output of a model with random weights: every output is in the grammar's language."""

import json
import re
import time
from collections import Counter
from typing import Any

import jsonschema
import msgspec
import pytest
import torch
from llguidance import LLMatcher, LLParserLimits
from tokenizers import Tokenizer
from transformers import AutoConfig, AutoModelForImageTextToText

from antiphon.engine.builder import build_core_from_model
from antiphon.engine.checkpoint.files import inspect_checkpoint
from antiphon.engine.embedded import MODEL_DIR
from antiphon.engine.forward.interface import SequenceInput
from antiphon.engine.grammar_limits import MAX_COMPILED_GRAMMARS
from antiphon.engine.options import EngineOptions
from antiphon.engine.protocol import EngineError, Job, Sampling
from antiphon.engine.scheduler import grammar
from antiphon.engine.scheduler.core import Core
from antiphon.engine.scheduler.grammar import GrammarMatcher, compiler_factory, prefetch_masks
from antiphon.engine.scheduler.step_output import GRAMMAR_TOO_COMPLEX
from tests.engine.tiny_models import build_tiny_core, join_tokens, make_job, make_prompts, run_jobs
from tests.progress import HANG_TIMEOUT_S

JSON_SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "kind": {"enum": ["cat", "dog"]},
        "sizes": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "maxItems": 3},
    },
    "required": ["name", "kind", "sizes"],
    "additionalProperties": False,
}
STOP_ID = 2
VOCABULARY_SIZE = 1027
"""Tokens of the embedded model."""


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(MODEL_DIR / "tokenizer.json"))


def build_random_core(**options: Any) -> Core:
    """Returns a core on a model with the embedded model's shape and vocabulary, and random weights."""
    torch.manual_seed(1)
    model: Any = AutoModelForImageTextToText.from_config(AutoConfig.from_pretrained(MODEL_DIR), dtype=torch.float32)  # type: ignore[no-untyped-call]
    return build_core_from_model(model.eval(), inspect_checkpoint(MODEL_DIR), EngineOptions(**options))


def make_job_with_grammar(name: str, grammar: str | None, seed: int = 1, **options: Any) -> Job:
    sampling = Sampling(**{"temperature": 1.0, "seed": seed, "max_tokens": 300, "stop_ids": (STOP_ID,)} | options)
    return Job(id=name, tokens=(5, 6, 7), sampling=sampling, grammar=grammar)


def make_json_grammar(body: Any) -> str:
    return f"start: %json {json.dumps(body)}"


def decode_output(tokenizer: Tokenizer, chunks: list[Any]) -> str:
    tokens = [token for token in join_tokens(chunks) if token != STOP_ID]
    return tokenizer.decode(tokens, skip_special_tokens=False)


def test_json_schema_output_of_a_random_model_is_valid(tokenizer: Tokenizer) -> None:
    results = run_jobs(
        build_random_core(),
        *(make_job_with_grammar(str(seed), make_json_grammar(JSON_SCHEMA), seed) for seed in range(12)),
    )
    for name, chunks in results.items():
        assert chunks[-1].finish == "stop", (name, decode_output(tokenizer, chunks))
        jsonschema.validate(json.loads(decode_output(tokenizer, chunks)), JSON_SCHEMA)


def test_grammar_does_not_affect_other_sequences_of_the_batch(tokenizer: Tokenizer) -> None:
    unconstrained = make_job_with_grammar("free", None, max_tokens=40)
    expected = join_tokens(run_jobs(build_random_core(), unconstrained)["free"])
    results = run_jobs(
        build_random_core(), make_job_with_grammar("constrained", make_json_grammar(JSON_SCHEMA)), unconstrained
    )
    assert join_tokens(results["free"]) == expected
    json.loads(decode_output(tokenizer, results["constrained"]))


@pytest.mark.parametrize(
    ("grammar", "pattern"),
    [
        ('start: "yes" | "no"', "yes|no"),
        ("start: /[a-c]{3,6}/", "[a-c]{3,6}"),
        ('start: "<" item ("," item)* ">"\nitem[max_tokens=3]: /[0-9]+/', r"<[0-9]+(,[0-9]+)*>"),
    ],
)
def test_lark_grammars_and_patterns_constrain_the_output(tokenizer: Tokenizer, grammar: str, pattern: str) -> None:
    for temperature in (0.0, 1.0):
        chunks = run_jobs(
            build_random_core(), make_job_with_grammar("j", grammar, temperature=temperature, max_tokens=400)
        )["j"]
        text = decode_output(tokenizer, chunks)
        assert chunks[-1].finish == "stop" and re.fullmatch(pattern, text), text


def test_stop_tokens_are_allowed_only_after_a_complete_output(tokenizer: Tokenizer) -> None:
    """The stop tokens are those of the model's configuration, even if the tokenizer defines another end token."""
    compiler = compiler_factory(MODEL_DIR, VOCABULARY_SIZE, [0])()
    assert compiler is not None
    matcher = compiler.create_matcher('start: "ab" "cd"?', {STOP_ID, 0})
    stop_allowed = []
    for token in tokenizer.encode("abcd", add_special_tokens=False).ids:
        stop_allowed.append(bool(matcher.next_mask()[STOP_ID]))
        matcher.advance(token)
    final_mask = matcher.next_mask()
    assert stop_allowed[0] is False and final_mask.nonzero().flatten().tolist() == [0, STOP_ID]
    matcher.advance(STOP_ID)
    matcher.advance(5)


def test_matcher_after_a_rejected_token_allows_nothing() -> None:
    compiler = compiler_factory(MODEL_DIR, VOCABULARY_SIZE, [STOP_ID])()
    assert compiler is not None
    matcher = compiler.create_matcher('start: "yes"', {STOP_ID})
    rejected_token = int((~matcher.next_mask()).nonzero()[10])
    matcher.advance(rejected_token)
    assert not matcher.next_mask().any()


def make_object_schema(count: int) -> dict[str, Any]:
    """Returns the schema of an object with optional properties, each of two types."""
    property_schema = {"anyOf": [{"type": "string", "maxLength": 9}, {"type": "integer"}]}
    properties = {f"p{number}": property_schema for number in range(count)}
    return {"type": "object", "properties": properties, "additionalProperties": False}


def test_object_may_have_two_thousand_optional_properties(tokenizer: Tokenizer) -> None:
    grammar = LLMatcher.grammar_from_json_schema(make_object_schema(2000))
    compiler = compiler_factory(MODEL_DIR, VOCABULARY_SIZE, [STOP_ID])()
    assert compiler is not None
    matcher = compiler.create_matcher(grammar, {STOP_ID})
    for token in tokenizer.encode('{"p7": 12, "p1999": "x"}', add_special_tokens=False).ids:
        assert matcher.next_mask()[token]
        matcher.advance(token)
    assert matcher.next_mask()[STOP_ID] and not matcher.has_failed


def test_grammar_beyond_the_limit_of_the_parser_is_the_fault_of_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar, "PARSER_LIMITS", LLParserLimits(max_items_in_row=50))
    schema = make_object_schema(100) | {"required": ["p99"]}  # otherwise, the output could be an empty object
    text = LLMatcher.grammar_from_json_schema(schema, defaults={"whitespace_flexible": False})
    chunks = run_jobs(build_random_core(), make_job_with_grammar("j", text, max_tokens=9))["j"]
    assert chunks[-1].fault == GRAMMAR_TOO_COMPLEX


def test_masks_are_computed_while_the_model_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each pass of the model waits until the masks of all three sequences have been computed."""
    computed: Counter[GrammarMatcher] = Counter()
    compute = GrammarMatcher._compute_mask

    def compute_and_count(matcher: GrammarMatcher) -> torch.Tensor:
        computed[matcher] += 1
        return compute(matcher)

    monkeypatch.setattr(GrammarMatcher, "_compute_mask", compute_and_count)
    core = build_random_core()
    passes: list[bool] = []
    run = core.forward.run

    def run_and_wait(work: list[SequenceInput]) -> torch.Tensor:
        logits = run(work)
        deadline = time.monotonic() + HANG_TIMEOUT_S
        while computed.total() < 3 * (len(passes) + 1) and time.monotonic() < deadline:
            time.sleep(0.001)
        passes.append(computed.total() == 3 * (len(passes) + 1))
        return logits

    core.forward.run = run_and_wait  # type: ignore[method-assign]
    results = run_jobs(
        core, *(make_job_with_grammar(str(seed), "start: /[a-c]{200}/", seed, max_tokens=20) for seed in range(3))
    )
    assert [len(join_tokens(chunks)) for chunks in results.values()] == [20, 20, 20]
    assert len(passes) == 20 and all(passes)
    assert set(computed.values()) == {20}, "a mask was computed twice"


def test_prefetched_mask_is_discarded_when_the_matcher_advances(tokenizer: Tokenizer) -> None:
    compiler = compiler_factory(MODEL_DIR, VOCABULARY_SIZE, [STOP_ID])()
    assert compiler is not None
    matcher, reference = (compiler.create_matcher('start: "ab" "cd"?', {STOP_ID}) for _ in range(2))
    for token in tokenizer.encode("abcd", add_special_tokens=False).ids:
        prefetch_masks([matcher, None])
        matcher.advance(token)
        reference.advance(token)
        prefetch_masks([matcher])
        prefetch_masks([matcher])
        assert matcher.next_mask().equal(reference.next_mask()) and matcher.next_mask().any()


def test_invalid_grammar_rejects_only_its_own_job() -> None:
    core = build_random_core()
    core.add(make_job_with_grammar("good", 'start: "yes"'))
    with pytest.raises(EngineError) as caught:
        core.add(make_job_with_grammar("bad", "start: nothing_of_that_name"))
    assert caught.value.code == "invalid_request" and "grammar" in caught.value.message
    assert list(run_jobs(core)) == ["good"]


def test_grammar_without_a_tokenizer_is_rejected() -> None:
    with pytest.raises(EngineError) as caught:
        build_tiny_core("llama").add(make_job(make_prompts(3)[0], grammar='start: "a"'))
    assert caught.value.code == "grammar_unsupported"


def test_number_of_cached_compiled_grammars_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = compiler_factory(MODEL_DIR, VOCABULARY_SIZE, [STOP_ID])()
    assert compiler is not None
    for number in range(MAX_COMPILED_GRAMMARS + 5):
        compiler.create_matcher(f'start: "{number}"', {STOP_ID})
    assert len(compiler._compiled) == MAX_COMPILED_GRAMMARS
    monkeypatch.setattr("antiphon.engine.scheduler.grammar.LLMatcher", None)
    matcher, reference = (compiler.create_matcher(f'start: "{MAX_COMPILED_GRAMMARS}"', {STOP_ID}) for _ in range(2))
    matcher.advance(int(matcher.next_mask().nonzero()[0]))
    assert not torch.equal(matcher.next_mask(), reference.next_mask()), "each matcher has its own state"


HELLO = 'start: "Hello"'
HELLO_OR_MORE = 'start: "Hello" ("!" | "?")*'
EOS_IDS = (2,)


@pytest.mark.parametrize(
    "sampling",
    [
        {"min_tokens": 50},
        {"min_tokens": 50, "stop_ids": ()},
        {"min_tokens": 50, "ignore_eos": True},
        {"ignore_eos": True, "stop_ids": ()},
        {"min_tokens": 50, "ignore_eos": True, "stop_ids": ()},
        {"min_tokens": 50, "logit_bias": {2: -100.0}},
        {"min_tokens": 50, "temperature": 0.0},
        {"ignore_eos": True, "stop_ids": (), "temperature": 0.0},
        {"min_tokens": 50, "top_p": 0.5, "top_k": 3, "min_p": 0.1},
    ],
)
def test_a_complete_grammar_ends_before_the_least_number_of_tokens(
    tokenizer: Tokenizer, sampling: dict[str, Any]
) -> None:
    chunks = run_jobs(build_random_core(), make_job_with_grammar("j", HELLO, **sampling))["j"]
    assert chunks[-1].fault is None
    assert chunks[-1].finish == "stop" and chunks[-1].stop_id in EOS_IDS
    assert decode_output(tokenizer, chunks) == "Hello"


@pytest.mark.parametrize("sampling", [{"min_tokens": 20}, {"ignore_eos": True, "stop_ids": (), "max_tokens": 20}])
def test_a_grammar_that_can_continue_does_so(tokenizer: Tokenizer, sampling: dict[str, Any]) -> None:
    for seed in range(5):
        chunks = run_jobs(build_random_core(), make_job_with_grammar("j", HELLO_OR_MORE, seed, **sampling))["j"]
        assert chunks[-1].fault is None
        assert re.fullmatch(r"Hello[!?]*", decode_output(tokenizer, chunks))
        assert len([token for token in join_tokens(chunks) if token != STOP_ID]) >= 20


def test_a_stop_token_that_the_grammar_needs_ends_the_turn(tokenizer: Tokenizer) -> None:
    (first, *_) = tokenizer.encode("!", add_special_tokens=False).ids
    job = make_job_with_grammar("j", 'start: "Hello" "!" "Hello"', stop_ids=(STOP_ID, first))
    chunks = run_jobs(build_random_core(), job)["j"]
    assert chunks[-1].fault is None and chunks[-1].finish == "stop" and chunks[-1].stop_id == first
    assert decode_output(tokenizer, chunks) == "Hello!"


def test_a_complete_grammar_of_a_model_without_an_end_token_ends(tokenizer: Tokenizer) -> None:
    core = build_random_core()
    core.info = msgspec.structs.replace(core.info, eos_ids=())
    core.intake._info = core.info
    chunks = run_jobs(core, make_job_with_grammar("j", HELLO, stop_ids=()))["j"]
    assert chunks[-1].fault is None and chunks[-1].finish == "stop" and chunks[-1].stop_id is None
    assert decode_output(tokenizer, chunks).startswith("Hello")
