"""The pictures of one sequence: which rows of which features each of its tokens needs, and where it may be split."""

from array import array
from bisect import bisect_left, bisect_right

import numpy as np
import torch

from antiphon.engine.forward.pictures import FeatureRows, ImageFeatures, PassPictures
from antiphon.engine.media.positions import PromptPositions
from antiphon.engine.media_messages import MediaSpan
from antiphon.engine.protocol import Job

KEY_WORDS = 8
"""Words of 32 bits in the key of a picture."""


class SequencePictures:
    """Pictures of a sequence, with those of their features that are there.

    `is_soft` (n,) tells which tokens of the prompt are rows of pictures. With `two_way`, the tokens of a picture see
    all of it, so that no pass may end inside of it.
    """

    def __init__(self, job: Job, is_soft: np.ndarray, positions: PromptPositions | None, *, two_way: bool) -> None:
        self.job, self.spans, self.two_way = job, job.media, two_way
        self.features: list[ImageFeatures | None] = [None] * len(job.media)
        self._positions = positions
        self._num_prompt = len(job.tokens)
        self._soft_before = np.concatenate([[0], np.cumsum(is_soft)])
        self.is_soft = is_soft
        self._ends = [span.end for span in job.media]

    def build_match_tokens(self) -> "array[int]":
        """Returns the job's tokens for comparisons with others: words of the key in the place of soft tokens.

        They are negative, so that no token equals one. Equal words do not prove equal keys: see `equal_length`.
        """
        tokens = np.array((*self.job.tokens, *(self.job.generated or ())), np.intc)
        for span in self.spans:
            words = np.frombuffer(span.key, "<i4", KEY_WORDS).astype(np.intc) | np.intc(-(2**31))
            places = np.flatnonzero(self.is_soft[span.offset : span.end]) + span.offset
            tokens[places] = words[np.arange(len(places)) % KEY_WORDS]
        result = array("i")
        result.frombytes(tokens.tobytes())
        return result

    def list_missing(self, start: int) -> list[int]:
        """Returns the indices of the pictures that tokens from `start` on need and whose features are not there."""
        first = bisect_right(self._ends, start)
        return [index for index in range(first, len(self.spans)) if self.features[index] is None]

    def list_urgent(self, start: int, alignment: int) -> range:
        """Returns the indices of the pictures that the next pass with a picture needs at least.

        It is the first one that tokens from `start` on need, with those in the same block of `alignment` tokens.
        """
        first = bisect_right(self._ends, start)
        if first == len(self.spans):
            return range(0)
        place = max(self.spans[first].offset, start)
        block_end = place - place % alignment + alignment
        return range(first, bisect_left(self.spans, block_end, key=lambda span: span.offset))

    def list_done(self, start: int) -> list[int]:
        """Returns the indices of the pictures whose features are there and no token from `start` on needs."""
        last = bisect_right(self._ends, start)
        return [index for index in range(last) if self.features[index] is not None]

    def count_computable(self, start: int, end: int, alignment: int) -> int:
        """Returns how many of the tokens from `start` to `end` can be computed with the features that are there."""
        missing = self.list_missing(start)
        if not missing:
            return end - start
        stop = max(self.spans[missing[0]].offset, start)
        stop -= stop % alignment
        return max(min(stop, end) - start, 0)

    def fit_end(self, start: int, end: int) -> int:
        """Returns where a pass from `start` to about `end` may end: not inside of a picture that attends both ways."""
        span = self._find_block(end)
        if span is None:
            return end
        return span.offset if span.offset > start else span.end

    def cut_length(self, length: int) -> int:
        """Returns the length of a prefix of at most `length` tokens after which a pass may begin."""
        span = self._find_block(length)
        return length if span is None else span.offset

    def _find_block(self, place: int) -> MediaSpan | None:
        """Returns the two-way picture that a cut before this place would split."""
        if not self.two_way:
            return None
        index = bisect_right(self._ends, place)
        if index == len(self.spans) or self.spans[index].offset >= place:
            return None
        return self.spans[index]

    def select(self, start: int, end: int) -> PassPictures | None:
        """Returns what a pass over the tokens from `start` to `end` needs; None if it is the same as for text."""
        stop = min(end, self._num_prompt)
        soft_places = tuple((np.flatnonzero(self.is_soft[start:stop])).tolist()) if start < stop else ()
        positions = None if self._positions is None else self._positions.slice(start, end)
        if positions is not None and start >= self._num_prompt:
            positions = positions[0]
            if not self._positions or not self._positions.offset:
                positions = None
        if not soft_places and positions is None:
            return None
        ends = self._find_visible_ends(start, end) if self.two_way and soft_places else None
        return PassPictures(tuple(self._select_rows(start, stop)), positions, ends, soft_places)

    def _select_rows(self, start: int, stop: int) -> list[FeatureRows]:
        rows = []
        for index in range(bisect_right(self._ends, start), len(self.spans)):
            span = self.spans[index]
            if span.offset >= stop:
                break
            before = self._soft_before[span.offset]
            first = int(self._soft_before[max(start, span.offset)] - before)
            end = int(self._soft_before[min(stop, span.end)] - before)
            features = self.features[index]
            if features is None:
                raise RuntimeError("a pass needs features that are not there")
            if end > first:
                rows.append(FeatureRows(features, first, end))
        return rows

    def _find_visible_ends(self, start: int, end: int) -> torch.Tensor:
        """Returns the number of keys that each token sees: all of its picture, else up to itself."""
        ends = torch.arange(start + 1, end + 1)
        for span in self.spans:
            ends[max(span.offset - start, 0) : max(span.end - start, 0)] = span.end
        return ends
