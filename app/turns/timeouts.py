"""Time limits of turns."""

from msgspec import Struct


class TurnTimeouts(Struct, frozen=True, kw_only=True):
    """Time limits of a turn, in seconds."""

    queue_after_s: float = 1.0
    """Wait for admission after which the turn is reported as queued, so that the client sees a stream."""
    keepalive_after_s: float = 60.0
    """Silence after which a keepalive repeats the latest event of the life cycle: some clients give up after 300 s."""
    disconnect_grace_s: float = 0.0
    """Time for which a stored response runs on without a reader, so that its client can read on."""
    render_cpu_limit_s: float = 10.0
    """Maximum CPU time for rendering a prompt."""
