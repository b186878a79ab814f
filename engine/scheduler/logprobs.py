"""Log-probabilities of tokens, for clients."""

from collections.abc import Sequence

import torch
from torch import Tensor

from antiphon.engine.protocol import TokenLogprob
from antiphon.engine.scheduler.sampler import top_tokens


def compute_logprobs(logits: Tensor, tokens: Sequence[int], top: int) -> list[TokenLogprob]:
    """Log-probabilities of each row's token and of its `top` most likely tokens, from logits (rows, vocabulary)."""
    log_total = logits.logsumexp(-1, keepdim=True)
    logprobs = (logits.gather(-1, torch.tensor(tokens, device=logits.device)[:, None]) - log_total)[:, 0].tolist()
    if top <= 0:
        return [TokenLogprob(token, value) for token, value in zip(tokens, logprobs, strict=True)]
    values, ids = top_tokens(logits, min(top, logits.shape[-1]))
    ranked = zip(ids.tolist(), (values - log_total).tolist(), strict=True)
    return [
        TokenLogprob(token, value, tuple(zip(*row, strict=True)))
        for token, value, row in zip(tokens, logprobs, ranked, strict=True)
    ]
