"""How many tokens of prompts a step may carry: bounded in time, so that a long prompt slows nobody down too much.

A step's time is taken to be that of decoding alone plus a cost for each token of a prompt; both are measured. It knows
no clock: it is told how long each step took.
"""

from collections import defaultdict, deque
from statistics import median

SLOWDOWN = 1.6
"""A step with prompts may take so many times what decoding alone takes, if few wait."""

NEARLY = 0.8
"""A block of a prompt that takes so much of a step's time may double it."""

SURELY = 0.9
"""A step with prompts that takes less than such a part of what decoding alone is thought to take proves that wrong."""

FIRST = 2
"""Who waits for a first token counts as so many who wait for the next one: those have something to read."""

FLOOR = 8
"""Tokens of prompts that a step may carry however slow it is, so that a prompt is done in the end."""

SELDOM = (4 * FLOOR, 2 * FLOOR)
"""So many tokens come at once where fewer in every step would take too long, ..."""

LONGEST = 4
"""... if they do not take longer than so many steps."""

LATEST = 12
"""Steps that decoding alone is measured by."""

REFRESH = 32
"""After so many steps with prompts, two in a row without them measure decoding again."""


class Pace:
    """``chunk``: tokens of one step at most, whoever they belong to. Prompts come in blocks of ``grain`` tokens."""

    def __init__(self, chunk: int, grain: int = 1) -> None:
        self.grain = grain
        self._chunk = chunk
        self._saved = 0.0
        self._plain: defaultdict[int, deque[float]] = defaultdict(lambda: deque(maxlen=LATEST))
        self._costs: deque[float] = deque(maxlen=8)
        self._alone: float | None = None
        self._tried: deque[int] = deque([FLOOR], maxlen=8)
        self._mixed = 0
        self._was_plain = True
        self._seldom = False

    def budget(self, decoding: int, waiting: int) -> int:
        """Tokens of prompts for the next step, while so many sequences decode and so many wait for their first token.

        Where many wait, prompts take :data:`FIRST` times as much for each of them as decoding takes for each that
        decodes. 0: measure decoding first, or save up for a block of ``grain``, which would make this step too long;
        what is not 0 is enough for one. What is left of whole blocks is kept for the next step.
        """
        if not decoding:
            return max(self._chunk, self.grain)
        most = max(self._chunk - decoding, 1)
        plain = self.plain(decoding)
        if plain is None or self._mixed >= REFRESH:
            return 0
        allowed = max(SLOWDOWN - 1, FIRST * waiting / decoding) * plain
        cost = median(self._costs) if self._costs else self._alone
        wanted, block = self._wanted(allowed, cost, most), self.grain
        if cost is not None and allowed < plain:
            block = self._block(allowed, cost, plain)
            if block > self.grain or (block > FLOOR and cost * block > NEARLY * plain):
                wanted = min(wanted, (block - 1) / 2)  # so that most steps have no block
        kept = block if block > self.grain else wanted + block - 1
        self._saved = min(self._saved + wanted, kept, max(most, block))
        return int(self._saved) if self._saved >= block else 0

    def _wanted(self, allowed: float, cost: float | None, most: int) -> float:
        """How many tokens fit into ``allowed`` seconds, as far as is known; at least :data:`FLOOR`."""
        if cost is None:
            return min(FLOOR, most)
        further = 2 * max(self._tried)  # what was measured lately says something about twice as much
        fitting = int(allowed / cost) if allowed < cost * further else further
        return min(max(fitting, FLOOR), most)

    def _block(self, allowed: float, cost: float, plain: float) -> int:
        """How many tokens come at once, while a step may take ``allowed`` longer, and a token takes ``cost``.

        Where :data:`FLOOR` of them take longer, it is mostly their past that is read, and it is read for many as for
        few: more of them come, and seldom, until so many would do no harm in every step.
        """
        if self.grain > FLOOR:
            return self.grain
        block = next((size for size in SELDOM if cost * size < LONGEST * plain), 0)
        self._seldom = allowed < cost * (block if self._seldom else FLOOR)
        return block if self._seldom and block else self.grain

    def plain(self, decoding: int) -> float | None:
        """Seconds of a step in which so many sequences decode and nothing else happens; None: not measured yet.

        Of the latest steps a quarter was faster: while a long prompt is cut into tokens, all steps are slower.
        """
        measured = self._plain.get(_size(decoding))
        return sorted(measured)[len(measured) // 4] if measured else None

    def record(self, decoding: int, prompts: int, seconds: float) -> None:
        """A step with one token of each of ``decoding`` sequences and ``prompts`` tokens of prompts took so long."""
        self._saved = max(self._saved - prompts, 0)
        clean, self._was_plain = self._was_plain, not prompts
        if not prompts:
            measured = self._plain[_size(decoding)]
            if clean or not measured:  # right after a prompt caches are cold, which is the prompt's doing
                self._mixed = 0
                measured.append(seconds)
            return
        if not decoding:
            self._mixed = 0
            self._alone = seconds / prompts
            self._tried.append(max(prompts, FLOOR))
            return
        self._mixed += 1
        self._tried.append(max(prompts, FLOOR))
        plain = self.plain(decoding)
        if plain is not None and seconds < SURELY * plain:  # then decoding alone does not take so long, or not any more
            self._plain[_size(decoding)].clear()
        elif plain is not None:
            self._costs.append(max(seconds - plain, 0.0) / prompts)


def _size(decoding: int) -> int:
    """Numbers of sequences are alike within a factor of two."""
    return decoding.bit_length()
