"""Answers that are held to a grammar, on a model that knows nothing: whatever it says is in the language."""

import json
import re
import time
from collections import Counter
from typing import Any

import pytest

pytest.importorskip("torch")

import jsonschema
import torch
from tokenizers import Tokenizer
from transformers import AutoConfig, AutoModelForCausalLM

from antiphon.engine.builder import build_core_from_model
from antiphon.engine.checkpoint.files import inspect_checkpoint
from antiphon.engine.embedded import MODEL_DIR
from antiphon.engine.model.forward import SequenceInput
from antiphon.engine.options import EngineOptions
from antiphon.engine.protocol import EngineError, Job, Sampling
from antiphon.engine.scheduler.core import Core
from antiphon.engine.scheduler.grammar import MAX_COMPILED_GRAMMARS, GrammarMatcher, compiler_factory, prefetch_masks
from tests.engine.tiny_models import core_for, drain, job_of, prompts, tokens_of

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "kind": {"enum": ["cat", "dog"]},
        "sizes": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "maxItems": 3},
    },
    "required": ["name", "kind", "sizes"],
    "additionalProperties": False,
}
STOP = 2


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(MODEL_DIR / "tokenizer.json"))


def ignorant(**options: Any) -> Core:
    """The embedded model's shape and vocabulary with random weights."""
    torch.manual_seed(1)
    model: Any = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(MODEL_DIR), dtype=torch.float32)  # type: ignore[no-untyped-call]
    return build_core_from_model(model.eval(), inspect_checkpoint(MODEL_DIR), EngineOptions(**options))


def job(name: str, grammar: str | None, seed: int = 1, **more: Any) -> Job:
    sampling = Sampling(**{"temperature": 1.0, "seed": seed, "max_tokens": 300, "stop_ids": (STOP,)} | more)
    return Job(id=name, tokens=(5, 6, 7), sampling=sampling, grammar=grammar)


def schema(body: Any) -> str:
    return f"start: %json {json.dumps(body)}"


def written(tokenizer: Tokenizer, chunks: list[Any]) -> str:
    tokens = [token for token in tokens_of(chunks) if token != STOP]
    return tokenizer.decode(tokens, skip_special_tokens=False)


def test_json_of_a_model_that_knows_nothing_is_valid_at_any_seed(tokenizer: Tokenizer) -> None:
    chunks = drain(ignorant(), *(job(str(seed), schema(SCHEMA), seed) for seed in range(12)))
    for name, said in chunks.items():
        assert said[-1].finish == "stop", (name, written(tokenizer, said))
        jsonschema.validate(json.loads(written(tokenizer, said)), SCHEMA)


def test_a_neighbour_is_free_and_says_what_it_would_have_said_alone(tokenizer: Tokenizer) -> None:
    free = job("free", None, max_tokens=40)
    alone = tokens_of(drain(ignorant(), free)["free"])
    together = drain(ignorant(), job("held", schema(SCHEMA)), free)
    assert tokens_of(together["free"]) == alone
    json.loads(written(tokenizer, together["held"]))


@pytest.mark.parametrize(
    ("grammar", "pattern"),
    [
        ('start: "yes" | "no"', "yes|no"),
        ("start: /[a-c]{3,6}/", "[a-c]{3,6}"),
        ('start: "<" item ("," item)* ">"\nitem[max_tokens=3]: /[0-9]+/', r"<[0-9]+(,[0-9]+)*>"),
    ],
)
def test_lark_and_patterns(tokenizer: Tokenizer, grammar: str, pattern: str) -> None:
    for temperature in (0.0, 1.0):
        said = drain(ignorant(), job("j", grammar, temperature=temperature, max_tokens=400))["j"]
        whole = written(tokenizer, said)
        assert said[-1].finish == "length" or re.fullmatch(pattern, whole), whole


def test_the_turn_ends_where_the_answer_is_whole_and_only_there(tokenizer: Tokenizer) -> None:
    """The stop token is what a model's own configuration says, whatever the tokenizer calls its end."""
    guides = compiler_factory(MODEL_DIR, 1024, [0])()
    assert guides is not None
    guide = guides.create_matcher('start: "ab" "cd"?', {STOP, 0})
    steps = []
    for token in tokenizer.encode("abcd", add_special_tokens=False).ids:
        steps.append(bool(guide.next_mask()[STOP]))
        guide.advance(token)
    last = guide.next_mask()
    assert steps[0] is False and last.nonzero().flatten().tolist() == [0, STOP]
    guide.advance(STOP)
    guide.advance(5)


def test_a_matcher_that_gave_up_allows_nothing() -> None:
    guides = compiler_factory(MODEL_DIR, 1024, [STOP])()
    assert guides is not None
    guide = guides.create_matcher('start: "yes"', {STOP})
    wrong = int((~guide.next_mask()).nonzero()[10])
    guide.advance(wrong)
    assert not guide.next_mask().any()


def test_masks_are_computed_while_the_model_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each pass of the model waits until the masks of all who are to say something are there."""
    computed: Counter[GrammarMatcher] = Counter()
    compute = GrammarMatcher._compute_mask

    def counted(guide: GrammarMatcher) -> torch.Tensor:
        computed[guide] += 1
        return compute(guide)

    monkeypatch.setattr(GrammarMatcher, "_compute_mask", counted)
    core = ignorant()
    passes: list[bool] = []
    run = core._forward.run

    def watching(work: list[SequenceInput]) -> torch.Tensor:
        logits = run(work)
        end = time.monotonic() + 10
        while computed.total() < 3 * (len(passes) + 1) and time.monotonic() < end:
            time.sleep(0.001)
        passes.append(computed.total() == 3 * (len(passes) + 1))
        return logits

    core._forward.run = watching  # type: ignore[method-assign]
    said = drain(core, *(job(str(seed), "start: /[a-c]{200}/", seed, max_tokens=20) for seed in range(3)))
    assert [len(tokens_of(chunks)) for chunks in said.values()] == [20, 20, 20]
    assert len(passes) == 20 and all(passes)
    assert set(computed.values()) == {20}, "a mask was computed twice"


def test_a_mask_that_was_prepared_for_nothing_does_not_outlive_its_place(tokenizer: Tokenizer) -> None:
    guides = compiler_factory(MODEL_DIR, 1024, [STOP])()
    assert guides is not None
    one, two = (guides.create_matcher('start: "ab" "cd"?', {STOP}) for _ in range(2))
    for token in tokenizer.encode("abcd", add_special_tokens=False).ids:
        prefetch_masks([one, None])
        one.advance(token)
        two.advance(token)
        prefetch_masks([one])
        prefetch_masks([one])
        assert one.next_mask().equal(two.next_mask()) and one.next_mask().any()


def test_a_bad_grammar_is_refused_and_touches_nobody() -> None:
    core = ignorant()
    core.add(job("good", 'start: "yes"'))
    with pytest.raises(EngineError) as caught:
        core.add(job("bad", "start: nothing_of_that_name"))
    assert caught.value.code == "invalid_request" and "grammar" in caught.value.message
    assert list(drain(core)) == ["good"]


def test_a_model_without_a_tokenizer_says_so() -> None:
    with pytest.raises(EngineError) as caught:
        core_for("llama").add(job_of(prompts(3)[0], grammar='start: "a"'))
    assert caught.value.code == "grammar_unsupported"


def test_compiled_grammars_are_kept_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    guides = compiler_factory(MODEL_DIR, 1024, [STOP])()
    assert guides is not None
    for number in range(MAX_COMPILED_GRAMMARS + 5):
        guides.create_matcher(f'start: "{number}"', {STOP})
    assert len(guides._compiled) == MAX_COMPILED_GRAMMARS
    monkeypatch.setattr("antiphon.engine.scheduler.grammar.LLMatcher", None)
    one, two = (guides.create_matcher(f'start: "{MAX_COMPILED_GRAMMARS}"', {STOP}) for _ in range(2))
    one.advance(int(one.next_mask().nonzero()[0]))
    assert not torch.equal(one.next_mask(), two.next_mask()), "each follows its own answer"
