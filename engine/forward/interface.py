"""Interface of a forward pass over several sequences: token ids and caches in, rows of logits out."""

from typing import Any, Protocol

import msgspec
from torch import Tensor

from antiphon.engine.forward.adapter_weights import LoadedAdapter
from antiphon.engine.forward.pictures import PassPictures


class SequenceInput(msgspec.Struct):
    """New tokens of one sequence: `ids` follow the tokens in `cache`; the last `num_logits` of them need logits.

    The last `num_generated` ids are generated or draft tokens, not prompt tokens.
    """

    cache: Any
    ids: list[int]
    num_logits: int
    num_generated: int = 0
    adapter: LoadedAdapter | None = None
    pictures: PassPictures | None = None


class ForwardPass(Protocol):
    """Interface of a model to the core."""

    supports_chunked_prefill: bool
    """True if a prompt may be split over several passes."""
    prompt_alignment: int
    """Number of tokens at multiples of which a prompt may be split."""
    max_num_seqs: int | None
    """Maximum number of sequences in progress at once; None without a limit."""
    supports_drafts: bool
    """True if the last tokens of a cache can be dropped."""

    @property
    def state_tokens(self) -> int:
        """Memory that a sequence takes besides its tokens, in tokens."""
        ...

    @property
    def is_paged(self) -> bool:
        """True if caches are paged."""
        ...

    def new_cache(self, expected: int) -> Any:
        """Returns an empty cache for a sequence that is expected to hold `expected` tokens."""
        ...

    def run(self, inputs: list[SequenceInput]) -> Tensor:
        """Returns logits in fp32, (sum of `num_logits`, vocabulary), in the order of `inputs`.

        After an exception the caches of `inputs` must be discarded.
        """
        ...
