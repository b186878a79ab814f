"""Short jobs that show what a server does: log-probabilities, grammars, counts of cached tokens."""

import itertools

import msgspec

from antiphon.engine.protocol import Chunk, Job, Sampling
from antiphon.engine.remote.backend_apis.base import BackendApi, JobTarget, RemoteFailure, RemoteOutput, read_error_body
from antiphon.engine.remote.grammars.follower import GrammarFollowers
from antiphon.engine.remote.job_stream import JobStream
from antiphon.engine.remote.options import RemoteModel
from antiphon.engine.remote.queries import ServerQueries

TOP_LOGPROBS_TO_TRY = (20, 5, 0)
"""Numbers of log-probabilities to ask for; the first is the largest that a request can ask for."""
GRAMMAR_PROBE_TOKENS = 40
_probe_numbers = itertools.count()


class ProbeResult(msgspec.Struct, frozen=True):
    """Outcome of a probe: its failure, and whether the server counted cached tokens."""

    failure: RemoteFailure | None
    counts_cached_tokens: bool = False


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
        stop_ids = self._model.eos_ids
        prompt = self._model.tokenizer_check.probe_prompt
        job = Job(id=f"probe-{next(_probe_numbers)}", tokens=prompt, sampling=sampling, grammar=grammar)
        target, follower = (
            JobTarget(model=self._model_name, max_tokens=sampling.max_tokens or 1, stop_ids=stop_ids),
            None,
        )
        if grammar is not None and self._followers is not None:
            prepared = await self._followers.prepare_grammar(grammar, api.grammar_syntax)
            target, follower = prepared.apply_to(target), prepared.create_follower(stop_ids)
        decode, counts = api.create_decoder(job), list[int]()

        def decode_and_count(payload: bytes) -> RemoteOutput:
            output = decode(payload)
            if output.cached_tokens is not None:
                counts.append(output.cached_tokens)
            return output

        chunks: list[Chunk] = []
        stream = JobStream(
            job,
            chunks.append,
            target=target,
            vocab_size=self._model.vocab_size,
            decode=decode_and_count,
            follower=follower,
        )
        body = api.encode_job(job, target)
        response = await self._queries.request("POST", api.path, body, sink=stream)
        if response.status != 200:
            return ProbeResult(read_error_body(response.status, response.body))
        stream.finish_reply()
        if stream.has_left_grammar:
            return ProbeResult(RemoteFailure(500, "the output left the grammar"))
        return ProbeResult(stream.failure, counts_cached_tokens=bool(counts))
