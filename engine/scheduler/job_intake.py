"""Makes a sequence of each job that arrives, or refuses the job."""

from collections.abc import Callable

from antiphon.engine.adapters.registry import AdapterRegistry, adapter_not_found
from antiphon.engine.forward.adapter_weights import LoadedAdapter
from antiphon.engine.media.image_scheduler import ImageScheduler
from antiphon.engine.media_checks import check_media
from antiphon.engine.protocol import EngineError, EngineInfo, Job
from antiphon.engine.scheduler.grammar import CompilerFactory, GrammarMatcher
from antiphon.engine.scheduler.sampler import SamplingState
from antiphon.engine.scheduler.sequence import Sequence, suppress_tokens


class JobIntake:
    """Checks jobs, and finds what they name: adapters, grammars, pictures."""

    def __init__(
        self,
        info: EngineInfo,
        grammars: CompilerFactory,
        adapters: AdapterRegistry | None,
        pictures: ImageScheduler | None,
        clock: Callable[[], float],
    ) -> None:
        self._info, self._grammars, self._adapters, self._pictures = info, grammars, adapters, pictures
        self._clock = clock

    def build_sequence(self, job: Job) -> Sequence:
        """Returns the sequence of a job. Raises `EngineError` if the job cannot run on this engine."""
        info, sampling = self._info, job.sampling
        check_job(job, info)
        check_media(job, info)
        stop_ids, eos_ids = frozenset(sampling.stop_ids), frozenset(info.eos_ids)
        ignored_ids = eos_ids - stop_ids if sampling.ignore_eos else frozenset()
        if job.grammar is not None or not sampling.ignore_eos:  # a grammar needs a token for its end
            stop_ids |= eos_ids
        remaining = info.max_model_len - len(job.tokens)
        sampling_state = SamplingState(
            suppress_tokens(sampling, info.suppressed_ids),
            job.tokens,
            stop_ids,
            self._grammar_matcher(job, stop_ids),
            ignored_ids & stop_ids,
        )
        sampling_state.replay_tokens(job.generated or ())
        return Sequence(
            job,
            sampling_state,
            max_new_tokens=remaining if sampling.max_tokens is None else min(remaining, sampling.max_tokens),
            stop_ids=stop_ids,
            # A request that sets how much is generated gets that much.
            max_repetition_tokens=0 if sampling.ignore_eos or sampling.min_tokens else info.max_repetition_tokens,
            deadline_at=None if job.deadline is None else self._clock() + job.deadline,
            adapter=self._find_adapter(job),
            pictures=None if self._pictures is None else self._pictures.place_images(job),
        )

    def _find_adapter(self, job: Job) -> LoadedAdapter | None:
        if self._adapters is not None:
            return self._adapters.find(job.adapter)
        if job.adapter:
            raise adapter_not_found(job.adapter)
        return None

    def _grammar_matcher(self, job: Job, stops: frozenset[int]) -> GrammarMatcher | None:
        if job.grammar is None:
            return None
        compiler = self._grammars()
        if compiler is None:
            raise EngineError("grammar_unsupported", "grammars are not supported: the model's tokenizer cannot be read")
        return compiler.create_matcher(job.grammar, stops)


def check_job(job: Job, info: EngineInfo) -> None:
    """Raises `EngineError` if the job could never run on this engine. Pure; may be called from any thread."""
    count = len(job.tokens)
    if not count:
        raise EngineError("invalid_request", "the prompt is empty")
    if count >= info.max_model_len:
        message = f"the prompt has {count} tokens; the context of {info.max_model_len} must hold the output too"
        raise EngineError("context_length_exceeded", message)
    s, generated = job.sampling, job.generated or ()
    if count + len(generated) > info.max_model_len:
        message = f"{count} tokens and {len(generated)} generated ones exceed the context of {info.max_model_len}"
        raise EngineError("context_length_exceeded", message)
    if generated and not 0 <= min(generated) <= max(generated) < info.vocab_size:
        raise EngineError("invalid_request", f"a generated token is outside the vocabulary of {info.vocab_size}")
    if not 0 <= min(job.tokens) <= max(job.tokens) < info.vocab_size:
        raise EngineError("invalid_request", f"the prompt has token ids outside the vocabulary of {info.vocab_size}")
    invalid_ids = [token for token in (*s.logit_bias, *s.stop_ids) if not 0 <= token < info.vocab_size]
    if invalid_ids:
        raise EngineError(
            "invalid_request", f"token id {invalid_ids[0]} is outside the vocabulary of {info.vocab_size}"
        )
    if s.repetition_penalty <= 0 or s.temperature < 0 or s.top_p < 0 or s.top_k < 0 or not 0 <= s.min_p <= 1:
        raise EngineError("invalid_request", "a sampling parameter is out of range")
