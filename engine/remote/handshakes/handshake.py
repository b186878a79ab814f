"""Finds out which server answers at an address, whether it fits the model here, and which fields of a job it honors.

The handshake runs at the start and after every outage. Each step has a name, which `/ready` shows.
"""

import logging
import re
from collections.abc import Callable
from typing import Any

import msgspec

from antiphon.engine.protocol import Capabilities, Sampling
from antiphon.engine.remote.backend_apis.base import BackendApi, EngineKind
from antiphon.engine.remote.backend_apis.completions import CompletionsApi
from antiphon.engine.remote.backend_apis.llama_cpp import LlamaCppApi
from antiphon.engine.remote.backend_apis.sglang_generate import SglangGenerateApi
from antiphon.engine.remote.backend_apis.vllm_generate import VllmGenerateApi
from antiphon.engine.remote.faults import clean_message
from antiphon.engine.remote.grammars.gbnf import REFUSED_IN_GBNF
from antiphon.engine.remote.handshakes.probes import ProbeResult, ServerProbes
from antiphon.engine.remote.handshakes.queries import HandshakeError, ServerQueries
from antiphon.engine.remote.handshakes.tokenizer_checks import TokenizerChecks
from antiphon.engine.remote.images.image_handshake import ImageAbility, probe_images
from antiphon.engine.remote.options import RemoteSetup, list_names
from antiphon.engine.remote.transport.http_client import HttpClient

log = logging.getLogger(__name__)

GRAMMAR_PROBES = 3
"""Probes of grammars that must fail before the server is taken for one that does not follow them."""
MAX_CONTEXT = 1 << 31
"""Context length above which a server's number is not believed."""
MIN_VERSIONS: dict[EngineKind, tuple[int, ...]] = {"vllm": (0, 12), "sglang": (0, 5, 17)}
"""Oldest versions that return token ids and take our grammars."""
KINDS_BY_OWNER: dict[str, EngineKind] = {
    "vllm": "vllm",
    "sglang": "sglang",
    "llamacpp": "llama.cpp",
    "tensorrt_llm": "trtllm",
}
"""Kind of a server by the `owned_by` of its models."""
GRAMMAR_REMEDIES: dict[EngineKind, str] = {
    "vllm": """--structured-outputs-config '{"backend":"guidance","enable_in_reasoning":true}'""",
    "sglang": "--grammar-backend llguidance",
    "llama.cpp": "a build with -DLLAMA_LLGUIDANCE=ON",
    "trtllm": "guided_decoding_backend: llguidance",
}
CACHE_COUNT_FLAGS: dict[EngineKind, str] = {
    "vllm": "--enable-prompt-tokens-details",
    "sglang": "--enable-cache-report",
}


class ServerProfile(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a handshake."""

    kind: EngineKind
    version: str
    model: str
    max_model_len: int
    capabilities: Capabilities
    api: BackendApi
    logprobs_api: BackendApi
    """Interface for jobs with log-probabilities."""
    images: ImageAbility = ImageAbility()
    warnings: tuple[str, ...] = ()
    """Lines for the operator: what the server does not do, and the flag that mends it."""


class ListedModel(msgspec.Struct):
    """Model of `/v1/models`."""

    id: str
    owned_by: str = ""
    max_model_len: int | None = None
    meta: dict[str, Any] | None = None


class ModelPage(msgspec.Struct):
    """Body of `/v1/models`."""

    data: list[ListedModel] = []


class Handshake:
    """One handshake with the server of `client`. `on_step` is called with a short text for each step."""

    def __init__(self, client: HttpClient, setup: RemoteSetup, on_step: Callable[[str], None]) -> None:
        self._queries = ServerQueries(client, setup.timeouts.handshake_timeout_s)
        self._options, self._model, self._followers = setup.options, setup.model, setup.followers
        self._on_step = on_step
        self._name = client.endpoint.name
        self._warnings: list[str] = []

    async def run(self) -> ServerProfile:
        """Performs all steps. Raises `HandshakeError`."""
        self._on_step(f"connecting to {self._name}")
        listed = await self._find_model()
        kind = self._find_kind(listed)
        version, server_info = await self._read_version(kind)
        max_model_len = self._find_context(listed, server_info)
        self._on_step(f"comparing the tokenizer of {self._name}")
        checks = TokenizerChecks(self._queries, self._model, kind, listed.id)
        self._warnings += [*await checks.compare_text(), *await checks.compare_vocabulary(max_model_len)]
        probes = ServerProbes(self._queries, self._model, self._followers, listed.id)
        api, logprobs_api = await self._choose_apis(kind, probes)
        capabilities, api = await self._find_capabilities(kind, probes, api, logprobs_api)
        if kind == "llama.cpp":
            logprobs_api = api
        if server_info.get("enable_deterministic_inference"):
            capabilities = msgspec.structs.replace(capabilities, seed=True)
        self._on_step(f"probing the images of {self._name}")
        images = await probe_images(kind, probes, self._model, api, self._options.surface, server_info)
        self._warn_about(kind, capabilities, api)
        if images.refusal:
            self._warnings.append(f"{self._name} takes no images: {images.refusal}")
        return ServerProfile(
            kind=kind,
            version=version,
            model=listed.id,
            max_model_len=max_model_len,
            capabilities=capabilities,
            api=api,
            logprobs_api=logprobs_api,
            images=images,
            warnings=tuple(self._warnings),
        )

    # Steps

    async def _find_model(self) -> ListedModel:
        page = await self._queries.get_json("/v1/models", ModelPage)
        models = page.data
        if self._options.model is not None:
            models = [model for model in models if model.id == self._options.model]
        if len(models) == 1:
            return models[0]
        names = list_names([model.id for model in page.data])
        if not models and self._options.model is not None:
            raise self._queries.mismatch(f"does not serve '{self._options.model}'; it serves {names or 'no model'}")
        if not models:
            raise HandshakeError(f"{self._name} serves no model yet", is_permanent=False)
        raise self._queries.mismatch(f"serves several models: choose one of {names} with --engine-model")

    def _find_kind(self, listed: ListedModel) -> EngineKind:
        found = KINDS_BY_OWNER.get(listed.owned_by.lower())
        wanted = self._options.kind
        if found is not None and wanted is not None and found != wanted:
            raise self._queries.mismatch(f"is {found}, not {wanted}: start with --engine {found}")
        kind = found or wanted
        if kind is None:
            raise self._queries.mismatch("is a server of an unknown kind: name it with --engine vllm, sglang, …")
        return kind

    async def _read_version(self, kind: EngineKind) -> tuple[str, dict[str, Any]]:
        """Returns the version and what the server tells about its configuration."""
        path = {"sglang": "/server_info", "llama.cpp": "/props"}.get(kind, "/version")
        details = await self._queries.get_json(path, dict[str, Any])
        version = clean_message(str(details.get("build_info" if kind == "llama.cpp" else "version", "")), max_chars=64)
        oldest = MIN_VERSIONS.get(kind)
        if oldest is not None and parse_version(version) < oldest:
            needed = ".".join(map(str, oldest))
            raise self._queries.mismatch(
                f"runs {kind} {version or 'of an unknown version'}; {needed} or later is needed"
            )
        return version, details

    def _find_context(self, listed: ListedModel, server_info: dict[str, Any]) -> int:
        """Returns the shorter of the server's context and ours."""
        settings = server_info.get("default_generation_settings")
        candidates = (
            listed.max_model_len,
            settings.get("n_ctx") if isinstance(settings, dict) else None,
            (listed.meta or {}).get("n_ctx"),
            server_info.get("max_model_len") or server_info.get("context_length"),
        )
        length = next((value for value in candidates if isinstance(value, int) and 0 < value <= MAX_CONTEXT), None)
        ours = self._model.max_model_len
        if length is None and ours is None:
            raise self._queries.mismatch("does not tell its context length: set --max-model-len")
        return min(value for value in (length, ours) if value is not None)

    async def _choose_apis(self, kind: EngineKind, probes: ServerProbes) -> tuple[BackendApi, BackendApi]:
        """Returns the interface of most jobs, and that of jobs with log-probabilities."""
        wants_generate = self._options.surface == "generate"
        if kind == "llama.cpp":
            return LlamaCppApi(), LlamaCppApi()
        if kind == "sglang":
            generate = SglangGenerateApi()
            return (generate if wants_generate else CompletionsApi(kind)), generate
        if kind == "vllm" and wants_generate:
            api = VllmGenerateApi()
            if (await probes.run_probe(api, Sampling(max_tokens=1))).failure is not None:
                raise self._queries.mismatch("does not serve /inference/v1/generate: start it with --enable-scale-out")
            return api, api
        if wants_generate:
            raise self._queries.mismatch(
                f"is {kind}, which has no generate interface: use --engine-surface completions"
            )
        return CompletionsApi(kind), CompletionsApi(kind)

    async def _find_capabilities(
        self, kind: EngineKind, probes: ServerProbes, api: BackendApi, logprobs_api: BackendApi
    ) -> tuple[Capabilities, BackendApi]:
        """Returns what the server's interface expresses and its settings honor, and the interface of most jobs."""
        self._on_step(f"probing the log-probabilities of {self._name}")
        max_top_logprobs = await probes.count_top_logprobs(logprobs_api)
        self._on_step(f"probing the grammars of {self._name}")
        result, grammar_api = await self._probe_grammar(kind, probes, api)
        capabilities = msgspec.structs.replace(
            api.capabilities,
            grammar=grammar_api is not None,
            max_top_logprobs=max_top_logprobs,
            counts_cached_tokens=result.counts_cached_tokens,
            grammar_remedy="" if self._options.grammar == "off" else GRAMMAR_REMEDIES[kind],
        )
        return capabilities, grammar_api or api

    async def _probe_grammar(
        self, kind: EngineKind, probes: ServerProbes, api: BackendApi
    ) -> tuple[ProbeResult, BackendApi | None]:
        """Returns the result of a successful probe, and the interface with which it followed a grammar."""
        can_try = self._followers is not None and self._model.grammar_probe is not None
        candidates = [api] if can_try and self._options.grammar != "off" else []
        if candidates and kind == "llama.cpp":
            candidates.append(LlamaCppApi("gbnf"))
        for candidate in candidates:
            for _ in range(GRAMMAR_PROBES):
                result = await probes.probe_grammar(candidate)
                if result.failure is None:
                    return result, candidate
                log.info("%s", self._queries.mismatch(f"failed a probe of grammars: {result.failure.message}"))
        if self._options.grammar == "require":
            remedy = GRAMMAR_REMEDIES[kind]
            raise self._queries.mismatch(f"does not follow grammars from the first token: start it with {remedy}")
        result = await probes.run_probe(api, Sampling(max_tokens=1))
        if (failure := result.failure) is not None:
            is_refused = 400 <= failure.status < 500 and failure.status != 429
            raise self._queries.mismatch(f"cannot run a job: {failure.message}", is_permanent=is_refused)
        return result, None

    def _warn_about(self, kind: EngineKind, capabilities: Capabilities, api: BackendApi) -> None:
        name = self._name
        if api.grammar_syntax == "gbnf":
            self._warnings.append(
                f"{name} is built without llguidance: grammars are translated to GBNF. Refused are {REFUSED_IN_GBNF}"
            )
        if not capabilities.grammar and self._options.grammar != "off":
            remedy = GRAMMAR_REMEDIES[kind]
            self._warnings.append(
                f"{name} does not follow grammars: strict tools and schemas are refused. Start it with {remedy}"
            )
        if not capabilities.counts_cached_tokens and kind in CACHE_COUNT_FLAGS:
            self._warnings.append(f"{name} does not count cached tokens: start it with {CACHE_COUNT_FLAGS[kind]}")
        if not capabilities.isolates_owners and self._options.separate_owners:
            effect = "prompts are not cached" if kind == "llama.cpp" else "its prompt cache is shared by all keys"
            self._warnings.append(f"{name} does not separate the owners of prompts: {effect}")


def parse_version(version: str) -> tuple[int, ...]:
    """Returns the numbers at the start of a version: (0, 32, 0) for "0.32.0+cpu"."""
    match = re.match(r"v?(\d+(?:\.\d+)*)", version)
    return tuple(int(part) for part in match[1].split(".")) if match else ()
