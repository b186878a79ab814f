"""The row of tokens that a packed pass reads."""

from antiphon.engine.forward.adapter_weights import LoadedAdapter
from antiphon.engine.forward.interface import SequenceInput
from antiphon.engine.forward.pictures import FeatureRows, PassPictures


class TokenRow:
    """The tokens of a pass, their positions in their sequences, and the index of each input's first token."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.positions: list[int] = []
        self.adapters: list[LoadedAdapter | None] = []
        self.first_index: dict[int, int] = {}
        self.pictures: list[tuple[int, PassPictures]] = []
        """First token and pictures of each input that has some."""

    def add_input(self, item: SequenceInput) -> int:
        """Appends the tokens of an input. Returns the index of the first one."""
        first = self.first_index[id(item)] = len(self.ids)
        self.ids += item.ids
        if item.pictures is not None:
            self.pictures.append((first, item.pictures))
        self.adapters += [item.adapter] * len(item.ids)
        self.positions += range(item.cache.length, item.cache.length + len(item.ids))
        return first

    @property
    def feature_rows(self) -> list[FeatureRows]:
        """Features of the soft tokens, in the order of the row."""
        return [rows for _, pictures in self.pictures for rows in pictures.rows]

    def find_logits(self, inputs: list[SequenceInput]) -> list[int]:
        """Returns the indices of the tokens whose logits are requested, in the order of the inputs."""
        ends = [(self.first_index[id(item)] + len(item.ids), item.num_logits) for item in inputs]
        return [index for end, rows in ends for index in range(end - rows, end)]


def split_input(item: SequenceInput) -> list[SequenceInput]:
    """Returns an input for each token."""
    pictures = [None] * len(item.ids) if item.pictures is None else item.pictures.split(len(item.ids))
    first_logit = len(item.ids) - item.num_logits
    return [
        SequenceInput(item.cache, [token], int(index >= first_logit), adapter=item.adapter, pictures=pictures[index])
        for index, token in enumerate(item.ids)
    ]
