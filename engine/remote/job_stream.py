"""Turns the reply of a remote engine into the chunks of a job, by the rules of `engine.protocol`."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator

import msgspec

from antiphon.engine.protocol import Chunk, Fault, FinishReason, Job, OnChunk, TokenLogprob
from antiphon.engine.remote.backend_apis.base import Decoder, Finish, JobTarget, RemoteFailure, RemoteOutput
from antiphon.engine.remote.faults import GRAMMAR_LEFT
from antiphon.engine.remote.grammars.continuation_mask import GrammarMode
from antiphon.engine.remote.grammars.follower import GrammarFollower
from antiphon.engine.remote.transport.sse import MAX_EVENT_BYTES, OversizedEventError, SseSplitter

EVENTS_PER_PASS = 64
"""Events that are processed at once. The others wait for the next pass of the event loop."""
TOKENS_PER_PASS = 256
"""Tokens that are processed at once. An engine whose reader was behind reports many in one event."""
BYTES_PER_PROMPT_TOKEN = 16
"""Bytes of a token id in JSON, with room: vLLM repeats the prompt in the first event."""
MAX_IDLE_BYTES = 512 << 10
"""Bytes of comments and of events without tokens that may follow each other."""
BROKEN_REPLY = RemoteFailure(502, "the reply is not in the format of this engine")
UNFINISHED_REPLY = RemoteFailure(502, "the reply ended before its end was reported")


class StreamStart(msgspec.Struct, frozen=True, kw_only=True):
    """Place in its job at which a reply begins."""

    is_admitted: bool = False
    num_generated: int = 0
    """Tokens at the end of the prompt that the job has generated before."""
    counts_cached: bool = True
    """False for a reply that continues: its server has found what this job has put into the cache."""
    grammar_mode: GrammarMode = "followed"
    num_left: int = 0
    """Tokens that the job may still generate, if the reply has a mask and thus one token."""


FIRST_REPLY = StreamStart()


class JobStream:
    """Reads one reply. A failure is kept in `failure`: the job may continue with another request.

    A stop token ends the job, whatever the server does after it. The last chunk waits for the server's final event,
    which carries the count of cached tokens; `finishing` is done when it begins to wait.
    """

    def __init__(
        self,
        job: Job,
        on_chunk: OnChunk,
        *,
        target: JobTarget,
        vocab_size: int,
        decode: Decoder,
        follower: GrammarFollower | None,
        start: StreamStart = FIRST_REPLY,
    ) -> None:
        self._job, self._on_chunk, self._decode = job, on_chunk, decode
        self._max_tokens, self._stop_ids = target.max_tokens, frozenset(target.stop_ids)
        self._vocab_size, self._follower = vocab_size, follower
        self.on_first_token: Callable[[], None] = lambda: None
        self._has_logprobs = job.sampling.top_logprobs is not None
        self._start = start
        max_prompt_tokens = target.max_prompt_tokens if job.media else len(job.tokens)
        self._splitter = SseSplitter(MAX_EVENT_BYTES + BYTES_PER_PROMPT_TOKEN * max_prompt_tokens)
        self._max_prompt_tokens, self._num_prompt_tokens = max_prompt_tokens, 0
        self._backlog = deque[bytes | RemoteOutput]()
        self._idle_bytes = self._cached = 0
        self._final: Chunk | None = None
        self._prompt_logprobs: tuple[TokenLogprob | None, ...] = ()
        self.finishing: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.is_admitted = start.is_admitted
        self.is_over = False
        """True once the last chunk was passed on."""
        self.has_left_grammar = False
        self.is_cut = False
        """True if the job continues with another request: the output left the grammar, or its one token has come."""
        self.num_tokens = 0
        self.num_outputs = 0
        """Events so far that show a progress of the job."""
        self.failure: RemoteFailure | None = None

    @property
    def has_backlog(self) -> bool:
        """True if events wait for the next pass of the event loop."""
        return bool(self._backlog)

    def on_body(self, data: bytes) -> bool:
        """Reads a part of the reply's body. Returns true if the rest is not needed."""
        self._idle_bytes += len(data)
        try:
            self._backlog.extend(self._splitter.feed(data))
        except OversizedEventError:
            return self._fail(BROKEN_REPLY)
        if self.process_backlog():
            return True
        num_idle_bytes = self._idle_bytes - self._splitter.num_buffered_bytes
        return num_idle_bytes > MAX_IDLE_BYTES and self._fail(BROKEN_REPLY)

    def process_backlog(self) -> bool:
        """Processes a part of the events that wait. Returns true if the rest is not needed."""
        backlog, last_token = self._backlog, self.num_tokens + TOKENS_PER_PASS
        for _ in range(EVENTS_PER_PASS):
            if not backlog or self.num_tokens >= last_token:
                break
            event = backlog.popleft()
            if self.on_payload(event) if isinstance(event, bytes) else self._process_output(event):
                backlog.clear()
                return True
        return False

    def on_payload(self, payload: bytes) -> bool:
        """Reads one event. Returns true if the rest is not needed."""
        if self.is_over or self.failure is not None:
            return True
        try:
            output = self._decode(payload)
        except (msgspec.DecodeError, ValueError, KeyError, RecursionError):
            return self._fail(BROKEN_REPLY)
        if len(output.tokens) > TOKENS_PER_PASS:
            output, *others = split_output(output)
            self._backlog.extendleft(reversed(others))
        return self._process_output(output)

    def finish_reply(self) -> None:
        """Handles the end of the reply, or the end of the wait for its final event."""
        while self._backlog and not self.process_backlog():
            pass
        if self._final is not None:
            self._deliver_final()
        elif not self.is_over and not self.is_cut and self.failure is None:
            self._fail(UNFINISHED_REPLY)

    def end_with(self, finish: FinishReason, fault: Fault | None = None) -> None:
        """Ends an admitted job with this last chunk, unless it is over."""
        if not self.is_over:
            self.is_over = True
            self._on_chunk(Chunk(finish=finish, fault=fault))

    def _process_output(self, output: RemoteOutput) -> bool:
        if self.is_cut:
            return False
        if output.failure is not None:
            return self._fail(output.failure)
        self._count_prompt(output)
        if output.prompt_logprobs:
            if not all(entry is None or self._is_entry_valid(entry) for entry in output.prompt_logprobs):
                return self._fail(BROKEN_REPLY)
            self._prompt_logprobs = output.prompt_logprobs
        if output.finish == "abort":
            return self._fail(RemoteFailure(502, "the engine aborted the job"))
        if self._final is None:
            if output.tokens or output.finish is not None:
                return self._process_tokens(output)
            if output.is_admission:
                self.num_outputs += 1
                self._admit()
        elif output.is_last:
            self._deliver_final()
        return False

    def _count_prompt(self, output: RemoteOutput) -> None:
        """Takes the server's counts of the prompt's tokens, if they are possible."""
        if self._job.media and len(self._job.tokens) <= output.prompt_tokens <= self._max_prompt_tokens:
            self._num_prompt_tokens = output.prompt_tokens - self._start.num_generated
        if output.cached_tokens is not None and 0 <= output.cached_tokens <= self._max_prompt_tokens:
            self._cached = max(self._cached, output.cached_tokens)

    def _process_tokens(self, output: RemoteOutput) -> bool:
        tokens = output.tokens
        if tokens and not 0 <= min(tokens) <= max(tokens) < self._vocab_size:
            return self._fail(BROKEN_REPLY)
        if self.num_tokens + len(tokens) >= self._max_tokens or not self._stop_ids.isdisjoint(tokens):
            output = self._cut_output(output)
        if self._has_logprobs and not self._are_logprobs_valid(output):
            return self._fail(BROKEN_REPLY)
        if self._start.grammar_mode == "masked":
            if not tokens and output.finish == "length":
                return self._fail(BROKEN_REPLY)
            output = self._cut_after_mask(output)
        num_accepted = self._count_accepted(output.tokens, output.finish)
        if num_accepted is None:
            self._pass_on(output)
            return False
        if self._start.grammar_mode == "checked":
            self.is_cut = True
            if num_accepted:
                self._pass_on(_shorten(output, num_accepted, None))
            return True
        follower = self._follower
        if self._job.sampling.min_tokens and follower is not None and follower.is_exhausted:
            self._pass_on(_shorten(output, num_accepted, "stop"))  # the server masked the only token that was left
            return True
        self.has_left_grammar = True
        self._admit()
        self.end_with("error", GRAMMAR_LEFT)
        return True

    def _cut_after_mask(self, output: RemoteOutput) -> RemoteOutput:
        """Ends the reply after the token of a mask. Only a stop token or the limit of the job ends the job."""
        if not output.tokens or output.tokens[-1] in self._stop_ids:
            return output
        self.is_cut = self._start.num_left > 1
        return msgspec.structs.replace(output, finish=None if self.is_cut else "length")

    def _pass_on(self, output: RemoteOutput) -> None:
        """Makes a chunk of a checked output. The last one is kept until the server's final event."""
        tokens = output.tokens
        if tokens and self.num_tokens == 0:
            self.on_first_token()
        self._admit()
        self.num_outputs += 1
        self._idle_bytes = 0
        self.num_tokens += len(tokens)
        chunk = Chunk(tokens=tokens, logprobs=output.logprobs, prompt_logprobs=self._prompt_logprobs)
        self._prompt_logprobs = ()
        if output.finish is None:
            self._on_chunk(chunk)
            self._note_end(is_end=self.is_cut)
            return
        stop_id = tokens[-1] if output.finish == "stop" and tokens else None
        self._final = msgspec.structs.replace(chunk, finish=output.finish, stop_id=stop_id)
        if output.is_last:
            self._deliver_final()
        self._note_end()

    def _note_end(self, *, is_end: bool = True) -> None:
        if is_end and not self.finishing.done():
            self.finishing.set_result(None)

    def _cut_output(self, output: RemoteOutput) -> RemoteOutput:
        """Ends the output after a stop token and at the limit of tokens: not every server does both."""
        tokens, finish = output.tokens, output.finish
        for position, token in enumerate(tokens):
            if token in self._stop_ids:
                tokens, finish = tokens[: position + 1], "stop"
                break
        room = self._max_tokens - self.num_tokens
        if len(tokens) > room:
            tokens, finish = tokens[:room], "length"
        if finish is None and len(tokens) == room:
            finish = "length"
        if finish == output.finish and len(tokens) == len(output.tokens):
            return output
        return _shorten(output, len(tokens), finish)

    def _are_logprobs_valid(self, output: RemoteOutput) -> bool:
        """Returns true if there is an entry for each token, about tokens of the vocabulary."""
        return len(output.logprobs) == len(output.tokens) and all(
            entry.id == token and self._is_entry_valid(entry)
            for token, entry in zip(output.tokens, output.logprobs, strict=True)
        )

    def _is_entry_valid(self, entry: TokenLogprob) -> bool:
        return all(0 <= token < self._vocab_size for token, _ in entry.top)

    def _count_accepted(self, tokens: tuple[int, ...], finish: Finish | None) -> int | None:
        """Returns the number of tokens after which the output leaves the grammar; None if it keeps it."""
        follower = self._follower
        if follower is None:
            return None
        num_accepted = follower.accept_tokens(tokens)
        has_stop_token = bool(tokens) and tokens[-1] in self._stop_ids
        keeps_end = finish != "stop" or has_stop_token or follower.is_complete
        return None if num_accepted == len(tokens) and keeps_end else num_accepted

    def _add_counts(self, chunk: Chunk) -> Chunk:
        """Returns the chunk with the counts of the prompt, which does not include what the job has generated."""
        cached, num_generated = self._cached if self._start.counts_cached else 0, self._start.num_generated
        cached = min(cached, self._num_prompt_tokens or len(self._job.tokens) - num_generated)
        return msgspec.structs.replace(chunk, cached_tokens=cached, prompt_tokens=self._num_prompt_tokens)

    def _admit(self) -> None:
        if not self.is_admitted:
            self.is_admitted = True
            self._on_chunk(self._add_counts(Chunk()))

    def _deliver_final(self) -> None:
        if not self.is_over and self._final is not None:
            self.is_over = True
            self._on_chunk(self._add_counts(self._final))

    def _fail(self, failure: RemoteFailure) -> bool:
        """Keeps the failure, unless the last chunk only waits for a count."""
        if self.is_cut:
            return True
        self.failure = failure
        if self._final is not None:
            self._deliver_final()
        return True


def _shorten(output: RemoteOutput, count: int, finish: Finish | None) -> RemoteOutput:
    """Returns the first tokens of an output, with this end."""
    tokens, logprobs = output.tokens[:count], output.logprobs[:count]
    return msgspec.structs.replace(output, tokens=tokens, logprobs=logprobs, finish=finish)


def split_output(output: RemoteOutput) -> Iterator[RemoteOutput]:
    """Yields outputs of at most `TOKENS_PER_PASS` tokens. The last one has the end."""
    tokens, logprobs = output.tokens, output.logprobs
    for start in range(0, len(tokens), TOKENS_PER_PASS):
        end = start + TOKENS_PER_PASS
        part = msgspec.structs.replace(output, tokens=tokens[start:end], logprobs=logprobs[start:end])
        if start:
            part = msgspec.structs.replace(part, prompt_logprobs=())
        yield part if end >= len(tokens) else msgspec.structs.replace(part, finish=None, is_last=False)
