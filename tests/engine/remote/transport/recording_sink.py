"""A sink that keeps what it receives, for tests of connections."""


class RecordingSink:
    """Keeps the parts of a body. `backlog_per_part`: passes that each part needs before it is done."""

    def __init__(
        self, *, enough_after: int | None = None, error: Exception | None = None, backlog_per_part: int = 0
    ) -> None:
        self.parts: list[bytes] = []
        self.num_outputs = self.num_passes = 0
        self.backlog = 0
        self.counts_outputs = True
        self.backlog_error: Exception | None = None
        self._enough_after, self._error, self._backlog_per_part = enough_after, error, backlog_per_part

    @property
    def has_backlog(self) -> bool:
        return self.backlog > 0

    def on_body(self, data: bytes) -> bool:
        assert not self.has_backlog, "no data comes before the backlog is done"
        self.parts.append(data)
        self.num_outputs += self.counts_outputs
        self.backlog += self._backlog_per_part
        if self._error is not None:
            raise self._error
        return self._enough_after is not None and len(self.parts) >= self._enough_after and not self.backlog

    def process_backlog(self) -> bool:
        self.backlog -= 1
        self.num_passes += 1
        if self.backlog_error is not None:
            raise self.backlog_error
        return self._enough_after is not None and len(self.parts) >= self._enough_after and not self.backlog
