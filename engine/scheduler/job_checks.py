"""Checks of a job that need no model."""

from antiphon.engine.protocol import EngineError, EngineInfo, Job


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
