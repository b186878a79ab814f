"""Validates a forward pass by its logits of two fixed texts, and keeps them to measure the error of quantization."""

from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import Tensor
from transformers import PreTrainedModel

from antiphon.engine.errors import one_line, refuse_out_of_memory
from antiphon.engine.forward.interface import ForwardPass, SequenceInput
from antiphon.engine.forward.sequential import SequentialForward
from antiphon.engine.load.finite_logits import check_finite
from antiphon.engine.optimize.packing_plan import DryRun
from antiphon.engine.optimize.quantization_error import ReferenceLogits

TEXT_LENGTHS_TOKENS = (30, 18)
"""Lengths in tokens of the two texts: more than a page of a paged cache each."""

LOGIT_ROWS_PER_PART = 8
"""Tokens of a pass whose logits are in memory together."""


def make_text(model: PreTrainedModel, base: int, length: int) -> list[int]:
    """Returns a text of arbitrary tokens, the same in every call."""
    vocabulary = model.config.get_text_config(decoder=True).vocab_size
    return [(base + 17 * n) % vocabulary for n in range(length)]


class ProbeTexts:
    """Two fixed texts, and the logits that the model gives them as it is loaded.

    `reference` are the logits of all tokens and `last_logits` (2, vocabulary) those of each text's last one. They
    are None until they are measured.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.texts = [make_text(model, base, length) for base, length in zip((3, 11), TEXT_LENGTHS_TOKENS, strict=True)]
        self._model = model
        self.reference: ReferenceLogits | None = None
        self.last_logits: Tensor | None = None

    @torch.inference_mode()
    def measure(self, forward: ForwardPass) -> None:
        """Measures the logits with one pass for each text. Raises `LoadError` if they are not finite."""
        logits = [forward.run([SequenceInput(forward.new_cache(len(ids)), ids, len(ids))]) for ids in self.texts]
        check_finite(torch.cat(logits), self._model)
        self.last_logits = torch.stack([rows[-1] for rows in logits])
        self.reference = ReferenceLogits.keep(torch.cat(logits))

    @torch.inference_mode()
    def compute_rows(self, forward: ForwardPass) -> Iterator[Tensor]:
        """Yields the rows of the logits, few of which are in memory together. Takes more passes than `measure`.

        The last two tokens of each text run in passes of their own, because some models compute a single token in
        another way.
        """
        for ids in self.texts:
            cache, last = forward.new_cache(len(ids)), len(ids) - 2
            for first, end in pairwise((*range(0, last, LOGIT_ROWS_PER_PART), last, last + 1, len(ids))):
                yield from forward.run([SequenceInput(cache, ids[first:end], end - first)])

    @torch.inference_mode()
    def compute_in_pieces(self, forward: ForwardPass) -> Tensor:
        """Returns the logits of the last token of each text.

        The texts are batched, split over several passes, and begin in different passes.
        """
        first, second = self.texts
        first_cache, second_cache = forward.new_cache(0), forward.new_cache(0)
        forward.run([SequenceInput(first_cache, first[:4], 0)])
        forward.run([SequenceInput(first_cache, first[4:-2], 0), SequenceInput(second_cache, second[:-2], 0)])
        forward.run([SequenceInput(first_cache, first[-2:-1], 0), SequenceInput(second_cache, second[-2:-1], 0)])
        return forward.run([SequenceInput(first_cache, first[-1:], 1), SequenceInput(second_cache, second[-1:], 1)])

    @torch.inference_mode()
    def compute_in_turns(self, forward: SequentialForward, *, interleaved: bool) -> Tensor:
        """Returns the logits of the last two tokens of each text, one text after another or `interleaved`.

        Both orders split the texts into the same passes, so that only the order can change the logits.
        """
        caches = [forward.new_cache(0) for _ in self.texts]
        passes = [(number, part) for number in range(len(self.texts)) for part in range(3)]
        logits = {}
        for number, part in sorted(passes, key=lambda place: place[::-1]) if interleaved else passes:
            ids = self.texts[number]
            piece = (ids[:-2], ids[-2:-1], ids[-1:])[part]
            logits[number, part] = forward.run([SequenceInput(caches[number], piece, int(part > 0))])
        return torch.cat([logits[place] for place in passes])


class Validation:
    """Compares passes with the logits that the model's own code gives the texts.

    Each pass reads the whole model, so what it shows is kept for later checks: the measured logits in `texts`, and in
    `dry_run` how the model uses its linear layers. `had_placeholders` tells whether experts were not computed.
    """

    def __init__(self, model: PreTrainedModel, dry_run: DryRun | None = None) -> None:
        self.texts, self.dry_run = ProbeTexts(model), dry_run
        self.had_placeholders = False
        self._model = model

    def measure_texts(self, forward: ForwardPass) -> None:
        """Measures the logits of the texts, unless validation has measured them."""
        if self.texts.reference is None:
            self.texts.measure(forward)

    def release_dry_run(self) -> list[list[str]] | None:
        """Returns the groups of the dry run, None if there was none, and releases the layers that it holds."""
        dry_run, self.dry_run = self.dry_run, None
        return None if dry_run is None else dry_run.groups

    def find_mismatch(self, forward: ForwardPass) -> str | None:
        """Returns the reason why the logits of this pass are wrong; None if they match. The texts must be measured.

        The passes are a dry run, too. If the model does not run as one, it runs without.
        """
        expected = self.texts.last_logits
        assert expected is not None

        def run() -> str | None:
            return describe_error(self.texts.compute_in_pieces(forward), expected, self._model)

        if self.dry_run is not None and self.dry_run.observe(run) is None:
            return None
        try:
            return run()
        except Exception as failure:  # noqa: BLE001  another pass is used instead
            refuse_out_of_memory(failure)
            return one_line(failure)


def describe_error(logits: Tensor, expected: Tensor, model: PreTrainedModel) -> str | None:
    """Returns the reason why the logits of a pass are wrong; None if they match."""
    error = relative_error(logits, expected)
    tolerance = 0.01 if model.dtype == torch.float32 else 0.1
    return None if error <= tolerance else f"its logits differ by {error:.2g} from the sequential pass"


def relative_error(logits: Tensor, expected: Tensor) -> float:
    """Returns the relative L2 error. The norm is of `expected` without row means, so an offset hides no errors."""
    centred = expected - expected.mean(-1, keepdim=True)
    return float((logits - expected).norm() / centred.norm().clamp_min(1e-12))


@torch.inference_mode()
def reference_logits(forward: ForwardPass, model: PreTrainedModel, length: int = 64) -> Tensor:
    """Returns the logits (length, vocabulary) of a fixed text, whose last two tokens run in passes of their own."""
    ids, cache = make_text(model, 5, length), forward.new_cache(length)
    parts = (ids[:-2], ids[-2:-1], ids[-1:])
    return torch.cat([forward.run([SequenceInput(cache, part, len(part))]) for part in parts])
