"""Chooses a replica for a job: the same one for the same conversation, unless it has too much to do.

Rendezvous hashing needs no state, so that several front ends choose alike without talking to each other.
"""

import hashlib
from collections.abc import Sequence

from antiphon.engine.remote.replica import Replica

SPILL_RATIO = 1.25
"""A replica with more than this multiple of the mean number of jobs takes no further one of another's choice."""
SPILL_JOBS = 2
"""Jobs that a replica may have above that multiple, so that small numbers do not spill."""
AFFINITY_TOKENS = 1024
"""Tokens at the start of a prompt that make the key of a job without a conversation."""


def choose_replica(candidates: Sequence[Replica], key: str) -> Replica:
    """Returns the replica with the highest hash of the key that is not overloaded, else the least loaded one."""
    limit = SPILL_RATIO * sum(each.num_jobs for each in candidates) / len(candidates) + SPILL_JOBS
    ranked = sorted(candidates, key=lambda each: _hash(key, each.name), reverse=True)
    for candidate in ranked:
        if candidate.num_jobs < limit:
            return candidate
    return min(ranked, key=lambda each: each.num_jobs)


def affinity_of_prompt(owner: str, tokens: Sequence[int]) -> str:
    """Returns the key of a job that belongs to no conversation: jobs with a common start get the same one."""
    start = ",".join(map(str, tokens[:AFFINITY_TOKENS]))
    return hashlib.sha256(f"{owner}\n{start}".encode()).hexdigest()[:32]


def _hash(key: str, name: str) -> bytes:
    return hashlib.blake2b(f"{key}\n{name}".encode(), digest_size=8).digest()
