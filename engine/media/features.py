"""The features of pictures that were encoded lately, kept for later jobs of the same owner with the same picture."""

from collections import Counter
from collections.abc import Iterable

from antiphon.engine.forward.pictures import ImageFeatures

FeatureKey = tuple[str, str, bytes]
"""Owner, cache salt, and key of the picture. Nothing is shared between different keys."""


class FeatureCache:
    """Features by key, in order of their last use. Those in use are never evicted, even if they exceed `max_bytes`."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._features: dict[FeatureKey, ImageFeatures] = {}
        self._uses: Counter[FeatureKey] = Counter()
        self.num_bytes = 0

    def __contains__(self, key: FeatureKey) -> bool:
        return key in self._features

    def take(self, key: FeatureKey) -> ImageFeatures | None:
        """Returns the features and counts one more use; None if they are not there."""
        features = self._features.pop(key, None)
        if features is not None:
            self._features[key] = features
            self._uses[key] += 1
        return features

    def give_back(self, key: FeatureKey) -> None:
        """Ends a use."""
        self._uses[key] -= 1
        if self._uses[key] <= 0:
            del self._uses[key]
            self._evict()

    def insert(self, key: FeatureKey, features: ImageFeatures) -> None:
        """Adds features. They stay until they are taken, or others need their place."""
        self._features[key] = features
        self.num_bytes += features.num_bytes
        self._evict(spared=key)

    def has_room(self, num_bytes: int) -> bool:
        """Tells whether features of this size fit beside those in use."""
        return sum(self._features[key].num_bytes for key in self._uses) + num_bytes <= self._max_bytes

    def _evict(self, spared: FeatureKey | None = None) -> None:
        for key in [key for key in self._features if key not in self._uses and key != spared]:
            if self.num_bytes <= self._max_bytes:
                return
            self._remove([key])

    def _remove(self, keys: Iterable[FeatureKey]) -> None:
        for key in keys:
            self.num_bytes -= self._features.pop(key).num_bytes
