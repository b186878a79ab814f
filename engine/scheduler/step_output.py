"""What a step's rows of logits say: log-probabilities of prompts, next tokens, and how much of a draft was right.

It knows no schedule and no memory beyond the sequences it is given, and moves each of them on by what it reads.
"""

import msgspec
from torch import Tensor

from antiphon.engine.kernels.bindings import Kernels
from antiphon.engine.model.forward import Work
from antiphon.engine.protocol import Finish, TokenLogprob
from antiphon.engine.scheduler.sampler import choose, logprobs_of
from antiphon.engine.scheduler.sequence import Sequence


class Feed(msgspec.Struct):
    """The next ``count`` tokens of a sequence and, after all that it has, a draft of those to come."""

    sequence: Sequence
    count: int
    draft: list[int]

    @property
    def work(self) -> Work:
        """What the model is given."""
        sequence, end = self.sequence, self.sequence.fed + self.count
        said = min(max(end - len(sequence.job.tokens), 0), self.count)
        ids = sequence.tokens[sequence.fed : end].tolist() + self.draft
        return Work(sequence.state, ids, self.rows, said + len(self.draft))

    @property
    def rows(self) -> int:
        """How many rows of logits, the last ones, are needed."""
        if self.sequence.measures:
            return self.count
        return 1 + len(self.draft) if self.count == self.sequence.pending else 0


class News(msgspec.Struct):
    """What a step brought for one sequence; not ``sound``: no usable number for its next token."""

    sequence: Sequence
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    finish: Finish | None = None
    sound: bool = True


def read(feeds: list[Feed], logits: Tensor, kernels: Kernels | None = None) -> list[News]:
    """Take each sequence's rows of (rows, vocabulary); the news of those that are all fed."""
    news: list[News] = []
    plain: list[Sequence] = []
    lines: list[int] = []
    drafted: list[tuple[Feed, Tensor]] = []
    line = 0
    for feed in feeds:
        sequence = feed.sequence
        rows = logits[line : line + feed.rows]
        line += len(rows)
        if sequence.measures:
            _read_prompt(sequence, rows)
        sequence.fed += feed.count
        if sequence.pending:
            continue
        if sequence.limit <= 0:
            news.append(News(sequence, finish="length"))
        elif feed.draft:
            drafted.append((feed, rows))
        else:
            plain.append(sequence)
            lines.append(line - 1)
    if plain:
        news += _choose(plain, logits if len(lines) == len(logits) else logits[lines], kernels)
    return news + [_accept(feed, rows, kernels) for feed, rows in drafted]


def _choose(ready: list[Sequence], logits: Tensor, kernels: Kernels | None) -> list[News]:
    """One row of each sequence, one token for each."""
    news = []
    tokens = choose(logits, [sequence.dice for sequence in ready], kernels)
    for row, (sequence, token) in enumerate(zip(ready, tokens, strict=True)):
        if token is None:
            news.append(News(sequence, sound=False))
        else:
            logprobs = _logprobs(sequence, logits[row : row + 1], [token])
            news.append(News(sequence, (token,), logprobs, sequence.take(token)))
    return news


def _accept(feed: Feed, rows: Tensor, kernels: Kernels | None) -> News:
    """Draw row after row, as steps without a draft would have; go on while the tokens are those of the draft.

    The cache, which holds the draft already, then keeps what turned out to be true of it.
    """
    sequence = feed.sequence
    tokens: list[int] = []
    finish: Finish | None = None
    for place in range(len(rows)):
        token = choose(rows[place : place + 1], [sequence.dice], kernels)[0]
        if token is None:
            break
        finish = sequence.take(token)
        tokens.append(token)
        if finish or place == len(feed.draft) or token != feed.draft[place]:
            break
    sequence.fed += max(len(tokens) - 1, 0)
    sequence.state.truncate(sequence.fed)
    logprobs = _logprobs(sequence, rows[: len(tokens)], tokens)
    return News(sequence, tuple(tokens), logprobs, finish, sound=bool(tokens))


def _logprobs(sequence: Sequence, rows: Tensor, tokens: list[int]) -> tuple[TokenLogprob, ...]:
    top = sequence.job.sampling.top_logprobs
    return () if top is None or not tokens else tuple(logprobs_of(rows, tokens, top))


def _read_prompt(sequence: Sequence, logits: Tensor) -> None:
    """Row i speaks about token fed + i + 1; a sequence computed for the second time has nothing new to say."""
    if not sequence.prompt_logprobs:
        sequence.prompt_logprobs.append(None)
    prompt = sequence.job.tokens
    following = prompt[sequence.fed + 1 : sequence.fed + 1 + len(logits)]
    skip = len(sequence.prompt_logprobs) - (sequence.fed + 1)
    if skip < len(following):
        rows = logits[skip : len(following)]
        sequence.prompt_logprobs += logprobs_of(rows, following[skip:], sequence.job.prompt_logprobs or 0)
