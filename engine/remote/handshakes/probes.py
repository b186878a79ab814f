"""Short jobs that show what a server does: log-probabilities, grammars, counts of cached tokens."""

import itertools

import msgspec

from antiphon.engine.media_messages import MEDIA_KEY_BYTES, MediaSpan
from antiphon.engine.protocol import Chunk, Job, Sampling
from antiphon.engine.remote.backend_apis.base import BackendApi, JobTarget, RemoteFailure, RemoteOutput, read_error_body
from antiphon.engine.remote.grammars.follower import GrammarFollower, GrammarFollowers
from antiphon.engine.remote.handshakes.queries import ServerQueries
from antiphon.engine.remote.images.pictures import draw_probe_picture
from antiphon.engine.remote.job_stream import JobStream
from antiphon.engine.remote.options import RemoteModel

TOP_LOGPROBS_TO_TRY = (20, 5, 0)
"""Numbers of log-probabilities to ask for; the first is the largest that a request can ask for."""
GRAMMAR_PROBE_TOKENS = 40
MAX_PROBE_PROMPT_TOKENS = 8192
"""Limit of the tokens of a prompt with the small picture of a handshake."""
_probe_numbers = itertools.count()


class ProbeResult(msgspec.Struct, frozen=True):
    """Outcome of a probe: its failure, and whether the server counted cached tokens."""

    failure: RemoteFailure | None
    counts_cached_tokens: bool = False
    prompt_tokens: int = 0
    prompt_ids: tuple[int, ...] = ()
    """The prompt as the server had it, if it tells."""
    has_placeholders: bool = False
    """True if the server told where it has put the tokens of a picture."""


class ServerProbes:
    """Runs probes on the server of `queries`."""

    def __init__(
        self, queries: ServerQueries, model: RemoteModel, followers: GrammarFollowers | None, model_name: str
    ) -> None:
        self._queries, self._model, self._followers = queries, model, followers
        self._model_name = model_name

    async def count_top_logprobs(self, api: BackendApi) -> int:
        """Returns the largest number of log-probabilities that the server reports, -1 if it reports none."""
        if api.capabilities.max_top_logprobs == -1:
            return -1
        for count in TOP_LOGPROBS_TO_TRY:
            result = await self.run_probe(api, Sampling(max_tokens=1, top_logprobs=count))
            if result.failure is None:
                return count
        return -1

    async def probe_grammar(self, api: BackendApi) -> ProbeResult:
        """Runs a job under a grammar. It fails if the output is not of the grammar from the first token on."""
        probe = self._model.grammar_probe
        grammar = None if probe is None else probe.grammar
        return await self.run_probe(api, Sampling(max_tokens=GRAMMAR_PROBE_TOKENS), grammar)

    async def run_probe(self, api: BackendApi, sampling: Sampling, grammar: str | None = None) -> ProbeResult:
        """Runs a short job. Raises `HandshakeError` if the server does not answer."""
        prompt = self._model.tokenizer_check.probe_prompt
        job = Job(id=_next_id(), tokens=prompt, sampling=sampling, grammar=grammar)
        target, follower = self._build_target(sampling), None
        if grammar is not None and self._followers is not None:
            prepared = await self._followers.prepare_grammar(grammar, api.grammar_syntax)
            target, follower = prepared.apply_to(target), prepared.create_follower(self._model.eos_ids)
        return await self._run_job(api, job, target, follower)

    async def run_image_probe(
        self, api: BackendApi, tokens: tuple[int, ...], texts: tuple[str, ...] = (), marker: str = ""
    ) -> ProbeResult:
        """Runs a job with one picture, or with one between each two texts."""
        picture, sampling = draw_probe_picture(), Sampling(max_tokens=1)
        num_images = max(len(texts) - 1, 1)
        spans = (MediaSpan(key=bytes(MEDIA_KEY_BYTES), offset=0, length=0, rows=0),) * num_images
        job = Job(id=_next_id(), tokens=tokens, texts=texts, sampling=sampling, media=spans)
        target = msgspec.structs.replace(
            self._build_target(sampling), pictures=(picture,) * num_images, media_marker=marker
        )
        return await self._run_job(api, job, target, None)

    def _build_target(self, sampling: Sampling) -> JobTarget:
        return JobTarget(
            model=self._model_name,
            max_tokens=sampling.max_tokens or 1,
            stop_ids=self._model.eos_ids,
            max_prompt_tokens=MAX_PROBE_PROMPT_TOKENS,
        )

    async def _run_job(
        self, api: BackendApi, job: Job, target: JobTarget, follower: GrammarFollower | None
    ) -> ProbeResult:
        decode, outputs = api.create_decoder(job), list[RemoteOutput]()

        def decode_and_keep(payload: bytes) -> RemoteOutput:
            outputs.append(decode(payload))
            return outputs[-1]

        chunks: list[Chunk] = []
        stream = JobStream(
            job,
            chunks.append,
            target=target,
            vocab_size=self._model.vocab_size,
            decode=decode_and_keep,
            follower=follower,
        )
        body = api.encode_job(job, target)
        response = await self._queries.request("POST", api.path, body, sink=stream)
        if response.status != 200:
            return ProbeResult(read_error_body(response.status, response.body))
        stream.finish_reply()
        if stream.has_left_grammar:
            return ProbeResult(RemoteFailure(500, "the output left the grammar"))
        return ProbeResult(
            stream.failure,
            counts_cached_tokens=any(output.cached_tokens is not None for output in outputs),
            prompt_tokens=max((output.prompt_tokens for output in outputs), default=0),
            prompt_ids=next((output.prompt_ids for output in outputs if output.prompt_ids), ()),
            has_placeholders=any(output.has_placeholders for output in outputs),
        )


def _next_id() -> str:
    return f"probe-{next(_probe_numbers)}"
