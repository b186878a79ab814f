"""What a step's rows of logits say: log-probabilities of prompts, next tokens, and how much of a draft was right.

It knows no schedule and no memory beyond the sequences it is given, and moves each of them on by what it reads.
"""

import msgspec
from torch import Tensor

from antiphon.engine.kernels.bindings import Kernels
from antiphon.engine.model.forward import SequenceInput
from antiphon.engine.protocol import FinishReason, TokenLogprob
from antiphon.engine.scheduler.sampler import compute_logprobs, sample_tokens
from antiphon.engine.scheduler.sequence import Sequence


class ScheduledTokens(msgspec.Struct):
    """The next ``count`` tokens of a sequence and, after all that it has, a draft of those to come."""

    sequence: Sequence
    count: int
    draft: list[int]

    @property
    def model_input(self) -> SequenceInput:
        """What the model is given."""
        sequence, end = self.sequence, self.sequence.num_computed_tokens + self.count
        said = min(max(end - len(sequence.job.tokens), 0), self.count)
        ids = sequence.tokens[sequence.num_computed_tokens : end].tolist() + self.draft
        return SequenceInput(sequence.cache, ids, self.num_logits, said + len(self.draft))

    @property
    def num_logits(self) -> int:
        """How many rows of logits, the last ones, are needed."""
        if self.sequence.needs_prompt_logprobs:
            return self.count
        return 1 + len(self.draft) if self.count == self.sequence.num_pending else 0


class SequenceOutput(msgspec.Struct):
    """What a step brought for one sequence; not ``sound``: no usable number for its next token."""

    sequence: Sequence
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    finish: FinishReason | None = None
    is_valid: bool = True


def process_logits(
    scheduled: list[ScheduledTokens], logits: Tensor, kernels: Kernels | None = None
) -> list[SequenceOutput]:
    """Take each sequence's rows of (rows, vocabulary); the news of those that are all fed."""
    news: list[SequenceOutput] = []
    plain: list[Sequence] = []
    lines: list[int] = []
    drafted: list[tuple[ScheduledTokens, Tensor]] = []
    line = 0
    for feed in scheduled:
        sequence = feed.sequence
        rows = logits[line : line + feed.num_logits]
        line += len(rows)
        if sequence.needs_prompt_logprobs:
            _add_prompt_logprobs(sequence, rows)
        sequence.num_computed_tokens += feed.count
        if sequence.num_pending:
            continue
        if sequence.max_new_tokens <= 0:
            news.append(SequenceOutput(sequence, finish="length"))
        elif feed.draft:
            drafted.append((feed, rows))
        else:
            plain.append(sequence)
            lines.append(line - 1)
    if plain:
        news += _sample_next_tokens(plain, logits if len(lines) == len(logits) else logits[lines], kernels)
    return news + [_verify_draft(feed, rows, kernels) for feed, rows in drafted]


def _sample_next_tokens(ready: list[Sequence], logits: Tensor, kernels: Kernels | None) -> list[SequenceOutput]:
    """One row of each sequence, one token for each."""
    news = []
    tokens = sample_tokens(logits, [sequence.sampling_state for sequence in ready], kernels)
    for row, (sequence, token) in enumerate(zip(ready, tokens, strict=True)):
        if token is None:
            news.append(SequenceOutput(sequence, is_valid=False))
        else:
            logprobs = _token_logprobs(sequence, logits[row : row + 1], [token])
            news.append(SequenceOutput(sequence, (token,), logprobs, sequence.append_token(token)))
    return news


def _verify_draft(feed: ScheduledTokens, rows: Tensor, kernels: Kernels | None) -> SequenceOutput:
    """Draw row after row, as steps without a draft would have; go on while the tokens are those of the draft.

    The cache, which holds the draft already, then keeps what turned out to be true of it.
    """
    sequence = feed.sequence
    tokens: list[int] = []
    finish: FinishReason | None = None
    for place in range(len(rows)):
        token = sample_tokens(rows[place : place + 1], [sequence.sampling_state], kernels)[0]
        if token is None:
            break
        finish = sequence.append_token(token)
        tokens.append(token)
        if finish or place == len(feed.draft) or token != feed.draft[place]:
            break
    sequence.num_computed_tokens += max(len(tokens) - 1, 0)
    sequence.cache.truncate(sequence.num_computed_tokens)
    logprobs = _token_logprobs(sequence, rows[: len(tokens)], tokens)
    return SequenceOutput(sequence, tuple(tokens), logprobs, finish, is_valid=bool(tokens))


def _token_logprobs(sequence: Sequence, rows: Tensor, tokens: list[int]) -> tuple[TokenLogprob, ...]:
    top = sequence.job.sampling.top_logprobs
    return () if top is None or not tokens else tuple(compute_logprobs(rows, tokens, top))


def _add_prompt_logprobs(sequence: Sequence, logits: Tensor) -> None:
    """Row i speaks about token fed + i + 1; a sequence computed for the second time has nothing new to say."""
    if not sequence.prompt_logprobs:
        sequence.prompt_logprobs.append(None)
    prompt = sequence.job.tokens
    following = prompt[sequence.num_computed_tokens + 1 : sequence.num_computed_tokens + 1 + len(logits)]
    skip = len(sequence.prompt_logprobs) - (sequence.num_computed_tokens + 1)
    if skip < len(following):
        rows = logits[skip : len(following)]
        sequence.prompt_logprobs += compute_logprobs(rows, following[skip:], sequence.job.prompt_logprobs or 0)
