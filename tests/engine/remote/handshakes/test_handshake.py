"""The handshake: what it finds out about a server, and what it refuses, one condition at a time."""

import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from antiphon.engine.remote import vocabulary
from antiphon.engine.remote.grammars.follower import GrammarFollowers
from antiphon.engine.remote.handshakes.handshake import MAX_CONTEXT, Handshake, ServerProfile, parse_version
from antiphon.engine.remote.handshakes.queries import HandshakeError
from antiphon.engine.remote.options import RemoteModel, RemoteOptions, RemoteSetup
from antiphon.engine.remote.transport.endpoint import RemoteEndpoint
from antiphon.engine.remote.transport.http_client import HttpClient
from tests.engine.remote.fake_server import FakeServer, Pause, Reply, fake_server, json_reply, play_vllm, sse
from tests.engine.remote.remote_helpers import (
    EOS,
    FAST,
    decode,
    drop_grammars,
    encode,
    follow_gbnf,
    follow_grammars,
    load_model,
    play_llama,
    sample_grammar,
)


@asynccontextmanager
async def running_server(**attributes: Any) -> AsyncIterator[FakeServer]:
    async with fake_server(encode, play_vllm(50, EOS), follow_grammars) as server:
        server.decode = decode
        for name, value in attributes.items():
            setattr(server, name, value)
        yield server


async def shake_hands(
    server: FakeServer, *, here: dict[str, Any] | None = None, has_followers: bool = True, **options: Any
) -> ServerProfile:
    """Shakes hands with a server. `here`: fields of the model here to change."""
    model = msgspec.structs.replace(load_model()[0], **(here or {}))
    endpoint = RemoteEndpoint(host="127.0.0.1", port=server.port)
    client = HttpClient(endpoint, {}, silence_timeout_s=30, secrets=("sk-engine",))
    remote_options = RemoteOptions(endpoints=(endpoint,), **options)
    followers = create_followers(model) if has_followers else None
    try:
        return await Handshake(client, RemoteSetup(remote_options, model, followers, FAST), lambda _: None).run()
    finally:
        client.close()


async def refuse(server: FakeServer, **options: Any) -> HandshakeError:
    with pytest.raises(HandshakeError) as caught:
        await shake_hands(server, **options)
    return caught.value


def create_followers(model: RemoteModel) -> GrammarFollowers:
    assert model.tokenizer_file is not None
    return GrammarFollowers(model.tokenizer_file, model.vocab_size, model.eos_ids, model.relax_grammar)


class TestModel:
    """Which of the server's models is used."""

    @pytest.mark.parametrize(
        ("models", "wanted", "found"), [(["a"], None, "a"), (["a"], "a", "a"), (["a", "b"], "b", "b")]
    )
    async def test_model_is_found(self, models: list[str], wanted: str | None, found: str) -> None:
        async with running_server(models=models) as server:
            assert (await shake_hands(server, model=wanted)).model == found

    @pytest.mark.parametrize(
        ("models", "wanted", "message", "is_permanent"),
        [
            (["a", "b"], None, "serves several models: choose one of 'a', 'b' with --engine-model", True),
            (["a"], "b", "does not serve 'b'; it serves 'a'", True),
            ([], "b", "does not serve 'b'; it serves no model", True),
            ([], None, "serves no model yet", False),
            ([f"m{n}" for n in range(8)], None, "'m7' with", True),
            ([f"m{n}" for n in range(9)], None, "'m7' and 1 more with", True),
        ],
    )
    async def test_model_is_not_found(
        self, models: list[str], wanted: str | None, message: str, is_permanent: bool
    ) -> None:
        async with running_server(models=models) as server:
            error = await refuse(server, model=wanted)
            assert message in str(error) and error.is_permanent == is_permanent


class TestKindAndVersion:
    """Which kind of server it is, and how old."""

    @pytest.mark.parametrize(
        ("owned_by", "wanted", "found"),
        [("vllm", None, "vllm"), ("VLLM", "vllm", "vllm"), ("else", "vllm", "vllm"), ("else", "trtllm", "trtllm")],
    )
    async def test_kind_is_found(self, owned_by: str, wanted: Any, found: str) -> None:
        async with running_server(owned_by=owned_by) as server:
            assert (await shake_hands(server, kind=wanted)).kind == found

    @pytest.mark.parametrize(
        ("owned_by", "wanted", "message"), [("vllm", "sglang", "is vllm, not"), ("else", None, "--engine")]
    )
    async def test_kind_is_refused(self, owned_by: str, wanted: Any, message: str) -> None:
        async with running_server(owned_by=owned_by) as server:
            assert message in str(await refuse(server, kind=wanted))

    @pytest.mark.parametrize(
        ("owned_by", "version", "is_accepted"),
        [
            ("vllm", "0.12", True),
            ("vllm", "0.11.99", False),
            ("vllm", "0.12.0rc1", True),
            ("vllm", "v0.32.0+cpu", True),
            ("vllm", "", False),
            ("vllm", "main", False),
            ("sglang", "0.5.17", True),
            ("sglang", "0.5.16", False),
            ("tensorrt_llm", "", True),
        ],
    )
    async def test_oldest_version(self, owned_by: str, version: str, is_accepted: bool) -> None:
        async with running_server(owned_by=owned_by, version=version) as server:
            if is_accepted:
                assert (await shake_hands(server)).version == version
            else:
                assert "or later is needed" in str(await refuse(server))

    def test_numbers_of_a_version(self) -> None:
        assert parse_version("0.32.0+cpu") == (0, 32, 0) and parse_version("v1.2rc1") == (1, 2)
        assert parse_version("main") == parse_version("") == ()

    async def test_version_is_one_short_printable_line(self) -> None:
        async with running_server(version="0.32\x1b[31m\n" + "x" * 1000) as server:
            profile = await shake_hands(server)
            assert profile.version.isprintable() and len(profile.version) <= 64

    @pytest.mark.parametrize("is_deterministic", [True, False])
    async def test_seed_of_sglang(self, is_deterministic: bool) -> None:
        details = {"enable_deterministic_inference": is_deterministic}
        async with running_server(owned_by="sglang", version="0.5.20", details=details) as server:
            assert (await shake_hands(server)).capabilities.seed == is_deterministic


class TestContextLength:
    """The shorter of the server's context and ours; the server tells it in one of four places."""

    @pytest.mark.parametrize(
        ("model_fields", "details", "ours", "length"),
        [
            ({"max_model_len": 100}, {}, None, 100),
            ({"max_model_len": 100}, {}, 200, 100),
            ({"max_model_len": 200}, {}, 100, 100),
            ({}, {"default_generation_settings": {"n_ctx": 100}}, None, 100),
            ({"meta": {"n_ctx": 100}}, {"default_generation_settings": []}, None, 100),
            ({"meta": {"n_ctx": 100}}, {"default_generation_settings": None}, None, 100),
            ({}, {"max_model_len": 100}, None, 100),
            ({}, {"context_length": 100}, None, 100),
            ({}, {"max_model_len": None, "context_length": 100}, None, 100),
            ({"max_model_len": 0}, {"context_length": 100}, None, 100),
            ({}, {"max_model_len": "many", "context_length": 3}, 100, 100),
            ({}, {}, 100, 100),
            ({"max_model_len": MAX_CONTEXT}, {}, None, MAX_CONTEXT),
            ({"max_model_len": MAX_CONTEXT + 1}, {}, 100, 100),
            ({"max_model_len": 10**30}, {"context_length": 100}, None, 100),
        ],
    )
    async def test_context_length(
        self, model_fields: dict[str, Any], details: dict[str, Any], ours: int | None, length: int
    ) -> None:
        async with running_server(model_fields=model_fields, details=details) as server:
            profile = await shake_hands(server, here={"max_model_len": ours})
            assert profile.max_model_len == length

    async def test_unknown_context_length(self) -> None:
        async with running_server(model_fields={}) as server:
            assert "set --max-model-len" in str(await refuse(server, here={"max_model_len": None}))


class TestTokenizer:
    """The engine's tokenizer must be the one here: by the ids of a text, and by the text of every id."""

    @pytest.mark.parametrize("change", [lambda ids: ids[:-1], lambda ids: [*ids, 5]], ids=["shorter", "longer"])
    async def test_text_of_another_length(self, change: Callable[[list[int]], list[int]]) -> None:
        ids = list(load_model()[0].tokenizer_check.ids)
        async with running_server() as server:
            server.overrides["/tokenize"] = json_reply({"tokens": change(ids)})
            assert f"makes {len(change(ids))} tokens of a text, --tokenizer {len(ids)}" in str(await refuse(server))

    @pytest.mark.parametrize("position", [0, 100, -1])
    async def test_two_words_that_changed_places(self, position: int) -> None:
        local = load_model()[0].vocabulary
        assert local is not None
        ids = local.list_ids()
        first, second = ids[position], ids[position - 1]
        swapped = {first: second, second: first}
        async with running_server() as server:
            server.decode = lambda tokens: decode([swapped.get(token, token) for token in tokens])
            error = await refuse(server)
        assert error.is_permanent
        assert f"token {min(first, second)} is {decode([min(first, second)])!r} in --tokenizer" in str(error)

    async def test_whole_vocabulary_is_compared_in_blocks(self) -> None:
        local = load_model()[0].vocabulary
        assert local is not None
        for max_model_len, block_tokens in ((64, 32), (1 << 20, vocabulary.MAX_BLOCK_IDS)):
            async with running_server(model_fields={"max_model_len": max_model_len}) as server:
                await shake_hands(server)
            blocks = [request.body["tokens"] for request in server.requests if request.path == "/detokenize"]
            assert list(itertools.chain(*blocks)) == list(local.list_ids())
            assert len(blocks[0]) == min(block_tokens, len(local.list_ids()))

    async def test_blanks_and_broken_characters_do_not_count(self) -> None:
        """Servers join tokens with different blanks, and write incomplete characters in different ways."""
        async with running_server() as server:
            server.decode = lambda tokens: " \ufffd" + " ".join(decode([token]) for token in tokens) + "\n"
            assert not any("tokenizer" in warning for warning in (await shake_hands(server)).warnings)

    async def test_text_that_differs_only_beside_other_tokens_is_no_mismatch(self) -> None:
        async with running_server() as server:
            server.decode = lambda tokens: decode(tokens) + ("!" if len(tokens) > 1 else "")
            await shake_hands(server)
            num_requests = sum(request.path == "/detokenize" for request in server.requests)
            assert num_requests < 40, "the comparison is given up"

    @pytest.mark.parametrize(("status", "is_permanent"), [(503, False), (500, False), (429, False), (400, True)])
    async def test_detokenization_that_fails(self, status: int, is_permanent: bool) -> None:
        async with running_server() as server:
            server.overrides["/detokenize"] = json_reply({}, status)
            assert (await refuse(server)).is_permanent == is_permanent

    @pytest.mark.parametrize("status", [404, 405, 501])
    async def test_server_without_detokenization_is_told_of(self, status: int) -> None:
        async with running_server() as server:
            server.overrides["/detokenize"] = json_reply({}, status)
            assert any("vocabulary was not compared" in line for line in (await shake_hands(server)).warnings)

    @pytest.mark.parametrize("field", ["prompt", "content", "text"])
    async def test_text_of_every_kind_of_server(self, field: str) -> None:
        async with running_server(text_field=field) as server:
            await shake_hands(server)

    async def test_trtllm_has_no_tokenizer_to_compare(self) -> None:
        async with running_server(owned_by="tensorrt_llm") as server:
            profile = await shake_hands(server)
            assert not any("tokenize" in request.path for request in server.requests)
            assert any("were not compared" in line for line in profile.warnings)


class TestSurface:
    """Which interface is used, by kind and option."""

    @pytest.mark.parametrize(
        ("owned_by", "version", "surface", "path", "logprobs_path"),
        [
            ("vllm", "1", "auto", "/v1/completions", "/v1/completions"),
            ("vllm", "1", "completions", "/v1/completions", "/v1/completions"),
            ("vllm", "1", "generate", "/inference/v1/generate", "/inference/v1/generate"),
            ("sglang", "1", "auto", "/v1/completions", "/generate"),
            ("sglang", "1", "generate", "/generate", "/generate"),
            ("tensorrt_llm", "1", "auto", "/v1/completions", "/v1/completions"),
        ],
    )
    async def test_surface(self, owned_by: str, version: str, surface: Any, path: str, logprobs_path: str) -> None:
        meta = {"finish_reason": {"type": "length"}, "completion_tokens": 1}
        async with running_server(owned_by=owned_by, version=version) as server:
            server.overrides["/generate"] = Reply(sse({"output_ids": [50], "meta_info": meta}))
            profile = await shake_hands(server, surface=surface)
            assert (profile.api.path, profile.logprobs_api.path) == (path, logprobs_path)

    async def test_missing_generate_interface(self) -> None:
        async with running_server() as server:
            server.overrides["/inference/v1/generate"] = json_reply({}, 403)
            assert "--engine-key-env" in str(await refuse(server, surface="generate"))
            server.overrides["/inference/v1/generate"] = json_reply({}, 404)
            assert "start it with --enable-scale-out" in str(await refuse(server, surface="generate"))
        async with running_server(owned_by="tensorrt_llm") as server:
            assert "use --engine-surface completions" in str(await refuse(server, surface="generate"))


class TestProbes:
    """What short jobs show, and which failures of them are for ever."""

    @pytest.mark.parametrize(
        ("status", "is_permanent"),
        [(400, True), (404, True), (428, True), (429, False), (430, True), (499, True), (500, False), (503, False)],
    )
    async def test_failed_job(self, status: int, is_permanent: bool) -> None:
        async with running_server(probes=lambda _: json_reply({"error": {"message": "why"}}, status)) as server:
            error = await refuse(server, grammar="off")
            assert error.is_permanent == is_permanent and "cannot run a job: why" in str(error)

    async def test_error_of_a_job_is_one_line_without_the_key(self) -> None:
        reply = json_reply({"error": {"message": "no\nBearer sk-engine\x1b[31m"}}, 400)
        async with running_server(probes=lambda _: reply) as server:
            message = str(await refuse(server, grammar="off"))
            assert "sk-engine" not in message and message.isprintable()

    @pytest.mark.parametrize("status", [401, 403])
    async def test_key_that_is_not_accepted(self, status: int) -> None:
        async with running_server() as server:
            server.overrides["/v1/models"] = json_reply({}, status)
            error = await refuse(server)
            assert error.is_permanent and "--engine-key-env" in str(error)

    @pytest.mark.parametrize(
        ("status", "is_permanent"), [(503, False), (500, False), (429, False), (404, True), (400, True)]
    )
    async def test_status_of_a_query(self, status: int, is_permanent: bool) -> None:
        async with running_server() as server:
            server.overrides["/v1/models"] = json_reply({}, status)
            assert (await refuse(server)).is_permanent == is_permanent

    @pytest.mark.parametrize("body", [b"[" * 100_000, b"nonsense", b"[]", b'{"data": [{"id": 5}]}'])
    async def test_body_of_a_query_in_an_unknown_format(self, body: bytes) -> None:
        async with running_server() as server:
            server.overrides["/v1/models"] = Reply([body], is_chunked=False)
            assert "answered /v1/models in an unknown format" in str(await refuse(server))

    async def test_query_without_an_answer(self) -> None:
        async with running_server() as server:
            server.overrides["/version"] = Reply([Pause()])
            timeouts = msgspec.structs.replace(FAST, handshake_timeout_s=0.05)
            client = HttpClient(RemoteEndpoint(host="127.0.0.1", port=server.port), {}, silence_timeout_s=30)
            options = RemoteOptions(endpoints=(client.endpoint,))
            setup = RemoteSetup(options, load_model()[0], None, timeouts)
            with pytest.raises(HandshakeError, match=r"no answer within 0\.05 s") as caught:
                await Handshake(client, setup, lambda _: None).run()
            assert not caught.value.is_permanent

    @pytest.mark.parametrize(("accepted", "found"), [(20, 20), (19, 5), (5, 5), (4, 0), (0, 0), (-1, -1)])
    async def test_number_of_log_probabilities(self, accepted: int, found: int) -> None:
        def probes(body: dict[str, Any]) -> Reply | None:
            too_many = json_reply({"error": "too many"}, 400)
            return too_many if body.get("logprobs", -1) > accepted else follow_grammars(body)

        async with running_server(probes=probes) as server:
            assert (await shake_hands(server)).capabilities.max_top_logprobs == found


class TestGrammars:
    """When grammars are probed, and what follows from the result."""

    @pytest.mark.parametrize(
        ("has_followers", "here", "policy", "num_probes"),
        [
            (True, {}, "probe", 3),
            (True, {}, "require", 3),
            (True, {}, "off", 0),
            (False, {}, "probe", 0),
            (True, {"grammar_probe": None}, "probe", 0),
        ],
    )
    async def test_probes_of_grammars(
        self, has_followers: bool, here: dict[str, Any], policy: Any, num_probes: int
    ) -> None:
        async with running_server(probes=drop_grammars) as server:
            if policy == "require":
                assert "does not follow grammars from the first token" in str(await refuse(server, grammar=policy))
            else:
                profile = await shake_hands(server, here=here, has_followers=has_followers, grammar=policy)
                assert not profile.capabilities.grammar
                assert bool(profile.capabilities.grammar_remedy) == (policy != "off")
            assert sum("structured_outputs" in (request.body or {}) for request in server.requests) == num_probes

    async def test_required_grammars_without_a_way_to_probe_them(self) -> None:
        async with running_server() as server:
            assert "does not follow" in str(await refuse(server, grammar="require", has_followers=False))

    @pytest.mark.parametrize("num_failures", [0, 1, 2, 3])
    async def test_number_of_probes_that_may_fail(self, num_failures: int) -> None:
        left = [drop_grammars] * num_failures

        def probe(body: dict[str, Any]) -> Reply | None:
            is_grammar = "structured_outputs" in body
            return (left.pop() if is_grammar and left else follow_grammars)(body)

        async with running_server(probes=probe) as server:
            assert (await shake_hands(server)).capabilities.grammar == (num_failures < 3)


LLAMA = {"owned_by": "llamacpp", "text_field": "content", "probes": follow_gbnf}


class TestLlamaCpp:
    """Every build reads GBNF, one with llguidance reads Lark, too."""

    async def test_build_without_llguidance_gets_gbnf(self) -> None:
        async with running_server(**LLAMA) as server:
            profile = await shake_hands(server)
        assert profile.capabilities.grammar and profile.api is profile.logprobs_api
        assert profile.api.grammar_syntax == "gbnf"
        assert any("translated to GBNF. Refused are left recursion" in line for line in profile.warnings)
        grammars = [request.body["grammar"] for request in server.requests if "grammar" in (request.body or {})]
        assert [grammar.startswith("%llguidance") for grammar in grammars] == [True, True, True, False]

    async def test_build_with_llguidance_gets_lark(self) -> None:
        def follow_lark(body: dict[str, Any]) -> Reply:
            grammar = body.get("grammar", "").removeprefix("%llguidance {}\n")
            if not grammar:
                return follow_gbnf(body)
            tokens = sample_grammar(grammar, body["n_predict"])
            return play_llama(*tokens, stop_type="eos" if tokens[-1] == EOS else "limit")

        async with running_server(**{**LLAMA, "probes": follow_lark}) as server:
            profile = await shake_hands(server)
        assert profile.api.grammar_syntax == "lark" and not any("GBNF" in line for line in profile.warnings)

    async def test_gbnf_is_tried_with_llama_cpp_only(self) -> None:
        async with running_server(**LLAMA) as server:
            profile = await shake_hands(server, grammar="off")
            assert not profile.capabilities.grammar and profile.api.grammar_syntax == "lark"
        async with running_server(probes=drop_grammars) as server:
            assert not (await shake_hands(server)).capabilities.grammar
            assert "/completion" not in {request.path for request in server.requests}

    @pytest.mark.parametrize("policy", ["off", "probe", "require"])
    async def test_build_that_follows_neither(self, policy: Any) -> None:
        async with running_server(**{**LLAMA, "probes": lambda _: play_llama(50, EOS)}) as server:
            if policy == "require":
                assert "does not follow grammars" in str(await refuse(server, grammar=policy))
                return
            profile = await shake_hands(server, grammar=policy)
        assert not profile.capabilities.grammar and not any("GBNF" in line for line in profile.warnings)


class TestWarnings:
    """What the operator is told, one condition at a time."""

    @pytest.mark.parametrize(
        ("probes", "policy", "is_told"),
        [(drop_grammars, "probe", True), (drop_grammars, "off", False), (follow_grammars, "probe", False)],
    )
    async def test_grammars_that_are_not_followed(self, probes: Any, policy: Any, is_told: bool) -> None:
        async with running_server(probes=probes) as server:
            warnings = (await shake_hands(server, grammar=policy)).warnings
            assert any("does not follow grammars" in line for line in warnings) == is_told

    @pytest.mark.parametrize(
        ("owned_by", "cached", "is_told"), [("vllm", None, True), ("vllm", 0, False), ("tensorrt_llm", None, False)]
    )
    async def test_cached_tokens_that_are_not_counted(self, owned_by: str, cached: int | None, is_told: bool) -> None:
        async with running_server(owned_by=owned_by, probes=lambda _: play_vllm(50, EOS, cached=cached)) as server:
            warnings = (await shake_hands(server, grammar="off")).warnings
            assert any("does not count cached tokens" in line for line in warnings) == is_told

    @pytest.mark.parametrize(
        ("owned_by", "separates", "is_told"),
        [("tensorrt_llm", True, True), ("tensorrt_llm", False, False), ("vllm", True, False)],
    )
    async def test_owners_that_are_not_separated(self, owned_by: str, separates: bool, is_told: bool) -> None:
        async with running_server(owned_by=owned_by) as server:
            warnings = (await shake_hands(server, separate_owners=separates)).warnings
            assert any("does not separate the owners" in line for line in warnings) == is_told
