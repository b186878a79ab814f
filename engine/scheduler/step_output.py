"""Turns the logits of a step into output: prompt log-probabilities, next tokens, verified drafts.

This module knows no scheduler and no cache manager. It updates each sequence: its tokens and its number of computed
tokens.
"""

import msgspec
from torch import Tensor

from antiphon.engine.forward.interface import SequenceInput
from antiphon.engine.kernels.bindings import Kernels
from antiphon.engine.protocol import Fault, FinishReason, TokenLogprob
from antiphon.engine.scheduler.logprobs import compute_logprobs
from antiphon.engine.scheduler.sampler import sample_tokens
from antiphon.engine.scheduler.sequence import Sequence


class ScheduledTokens(msgspec.Struct):
    """The next `count` pending tokens of a sequence; if these are all, a draft of tokens to follow."""

    sequence: Sequence
    count: int
    draft: list[int]

    @property
    def model_input(self) -> SequenceInput:
        """Input of the forward pass for this sequence."""
        sequence, end = self.sequence, self.sequence.num_computed_tokens + self.count
        num_generated = min(max(end - len(sequence.job.tokens), 0), self.count)
        ids = sequence.tokens[sequence.num_computed_tokens : end].tolist() + self.draft
        pictures = sequence.pictures
        shown = None if pictures is None else pictures.select(sequence.num_computed_tokens, end + len(self.draft))
        num_new = num_generated + len(self.draft)
        return SequenceInput(sequence.cache, ids, self.num_logits, num_new, sequence.adapter, shown)

    @property
    def num_logits(self) -> int:
        """Number of last tokens whose logits are needed."""
        if self.sequence.needs_prompt_logprobs:
            return self.count
        return 1 + len(self.draft) if self.count == self.sequence.num_pending else 0


NON_FINITE_LOGITS = Fault("server_error", "The model produced non-finite logits.", retryable=False)
GRAMMAR_TOO_COMPLEX = Fault(
    "invalid_prompt",
    "The schema or grammar of the output is too complex: it has too many alternatives at one place.",
    retryable=False,
)


class SequenceOutput(msgspec.Struct):
    """Output of a step for one sequence. `is_valid` is False if it has no next token."""

    sequence: Sequence
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    finish: FinishReason | None = None
    is_valid: bool = True


def process_logits(
    scheduled: list[ScheduledTokens], logits: Tensor, kernels: Kernels | None = None
) -> list[SequenceOutput]:
    """Processes the rows of logits (rows, vocabulary) of each sequence.

    Returns the outputs of the sequences without pending tokens; the others are still in prefill.
    """
    outputs: list[SequenceOutput] = []
    undrafted: list[Sequence] = []
    last_rows: list[int] = []
    drafted: list[tuple[ScheduledTokens, Tensor]] = []
    row = 0
    for entry in scheduled:
        sequence = entry.sequence
        rows = logits[row : row + entry.num_logits]
        row += len(rows)
        if sequence.needs_prompt_logprobs:
            _add_prompt_logprobs(sequence, rows)
        sequence.num_computed_tokens += entry.count
        if sequence.num_pending:
            continue
        if sequence.num_generated >= sequence.max_new_tokens:
            outputs.append(SequenceOutput(sequence, finish="length"))
        elif (grammar := sequence.sampling_state.grammar) is not None and grammar.is_finished:
            outputs.append(SequenceOutput(sequence, finish="stop"))
        elif entry.draft:
            drafted.append((entry, rows))
        else:
            undrafted.append(sequence)
            last_rows.append(row - 1)
    if undrafted:
        outputs += _sample_next_tokens(
            undrafted, logits if len(last_rows) == len(logits) else logits[last_rows], kernels
        )
    return outputs + [_verify_draft(entry, rows, kernels) for entry, rows in drafted]


def explain_failure(sequence: Sequence) -> Fault:
    """Returns the fault of a sequence that has no next token."""
    grammar = sequence.sampling_state.grammar
    return GRAMMAR_TOO_COMPLEX if grammar is not None and grammar.has_failed else NON_FINITE_LOGITS


def _sample_next_tokens(ready: list[Sequence], logits: Tensor, kernels: Kernels | None) -> list[SequenceOutput]:
    """Samples one token per sequence, each from its row of logits."""
    outputs = []
    tokens = sample_tokens(logits, [sequence.sampling_state for sequence in ready], kernels)
    for row, (sequence, token) in enumerate(zip(ready, tokens, strict=True)):
        if token is None:
            outputs.append(SequenceOutput(sequence, is_valid=False))
        else:
            logprobs = _token_logprobs(sequence, logits[row : row + 1], [token])
            outputs.append(SequenceOutput(sequence, (token,), logprobs, sequence.append_token(token)))
    return outputs


def _verify_draft(scheduled: ScheduledTokens, rows: Tensor, kernels: Kernels | None) -> SequenceOutput:
    """Samples row by row, as steps without a draft would, as long as the tokens match the draft.

    The cache, which already holds the whole draft, is then truncated to the accepted tokens. Example: for the draft
    [5, 6, 7] the rows give 5, 6, 9. The output is 5, 6, 9; the cache keeps 5 and 6, and 9 is pending.
    """
    sequence = scheduled.sequence
    tokens: list[int] = []
    finish: FinishReason | None = None
    for index in range(len(rows)):
        token = sample_tokens(rows[index : index + 1], [sequence.sampling_state], kernels)[0]
        if token is None:
            break
        finish = sequence.append_token(token)
        tokens.append(token)
        if finish or index == len(scheduled.draft) or token != scheduled.draft[index]:
            break
    sequence.num_computed_tokens += max(len(tokens) - 1, 0)
    sequence.cache.truncate(sequence.num_computed_tokens)
    logprobs = _token_logprobs(sequence, rows[: len(tokens)], tokens)
    return SequenceOutput(sequence, tuple(tokens), logprobs, finish, is_valid=bool(tokens))


def _token_logprobs(sequence: Sequence, rows: Tensor, tokens: list[int]) -> tuple[TokenLogprob, ...]:
    top = sequence.job.sampling.top_logprobs
    return () if top is None or not tokens else tuple(compute_logprobs(rows, tokens, top))


def _add_prompt_logprobs(sequence: Sequence, logits: Tensor) -> None:
    """Adds prompt log-probabilities: row i holds the logits of token `num_computed_tokens` + i + 1.

    Tokens that are computed again, after preemption, are skipped.
    """
    if not sequence.prompt_logprobs:
        sequence.prompt_logprobs.append(None)
    prompt = sequence.job.tokens
    targets = prompt[sequence.num_computed_tokens + 1 : sequence.num_computed_tokens + 1 + len(logits)]
    skip = len(sequence.prompt_logprobs) - (sequence.num_computed_tokens + 1)
    if skip < len(targets):
        rows = logits[skip : len(targets)]
        computed = compute_logprobs(rows, targets[skip:], sequence.job.prompt_logprobs or 0)
        first = len(sequence.prompt_logprobs)
        pictures = sequence.pictures
        sequence.prompt_logprobs += [
            None if pictures is not None and pictures.is_soft[index] else logprob
            for index, logprob in enumerate(computed, first)
        ]
