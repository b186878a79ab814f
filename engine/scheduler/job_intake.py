"""Makes a sequence of each job that arrives, or refuses the job."""

from collections.abc import Callable

from antiphon.engine.adapters.registry import AdapterRegistry, adapter_not_found
from antiphon.engine.forward.adapter_weights import LoadedAdapter
from antiphon.engine.media.desk import PictureDesk
from antiphon.engine.media_checks import check_media
from antiphon.engine.protocol import EngineError, EngineInfo, Job
from antiphon.engine.scheduler.grammar import CompilerFactory, GrammarMatcher
from antiphon.engine.scheduler.job_checks import check_job
from antiphon.engine.scheduler.sampler import SamplingState
from antiphon.engine.scheduler.sequence import Sequence, suppress_tokens


class JobIntake:
    """Checks jobs, and finds what they name: adapters, grammars, pictures."""

    def __init__(
        self,
        info: EngineInfo,
        grammars: CompilerFactory,
        adapters: AdapterRegistry | None,
        pictures: PictureDesk | None,
        clock: Callable[[], float],
    ) -> None:
        self._info, self._grammars, self._adapters, self._pictures = info, grammars, adapters, pictures
        self._clock = clock

    def build_sequence(self, job: Job) -> Sequence:
        """Returns the sequence of a job. Raises `EngineError` if the job cannot run on this engine."""
        info, sampling = self._info, job.sampling
        check_job(job, info)
        check_media(job, info)
        stop_ids = frozenset(sampling.stop_ids) | (frozenset() if sampling.ignore_eos else frozenset(info.eos_ids))
        remaining = info.max_model_len - len(job.tokens)
        sampling_state = SamplingState(
            suppress_tokens(sampling, info.suppressed_ids), job.tokens, stop_ids, self._grammar_matcher(job, stop_ids)
        )
        sampling_state.replay_tokens(job.generated or ())
        return Sequence(
            job,
            sampling_state,
            max_new_tokens=remaining if sampling.max_tokens is None else min(remaining, sampling.max_tokens),
            stop_ids=stop_ids,
            deadline_at=None if job.deadline is None else self._clock() + job.deadline,
            adapter=self._find_adapter(job),
            pictures=None if self._pictures is None else self._pictures.lay_out(job),
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
