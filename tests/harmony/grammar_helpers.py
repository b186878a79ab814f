"""A model format's vocabulary in the form that llguidance reads."""

from typing import Any

from antiphon.harmony.format import ModelFormat


class MatcherVocabulary:
    """Token bytes and special ids of a model format, as `llguidance.TokenizerWrapper` expects them."""

    bos_token_id = None

    def __init__(self, model_format: ModelFormat, size: int) -> None:
        self.tokens = [model_format.decode_token(token)[1] for token in range(size)]
        vocabulary: Any = getattr(model_format, "vocabulary", None)
        self.special_token_ids = sorted(vocabulary.special_ids) if vocabulary else list(range(199_998, size))
        self.eos_token_id = (*model_format.stop_ids, *model_format.encode("<|im_end|>"))[0]

    def __call__(self, text: str | bytes) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)
