"""Time limits of the worker process."""

import msgspec

FLUSH_TIMEOUT_S = 5.0
"""Seconds for which a worker that is stopped writes prefixes to disk."""


class WorkerTimeouts(msgspec.Struct, frozen=True, kw_only=True):
    """Time limits of the worker process, in seconds."""

    step_timeout: float = 120.0
    """Silence after which a worker counts as hung and is killed. A step must take less."""
    load_timeout: float = 1800.0
    """Silence after which a worker that is loading is killed. No stage of loading may take longer."""
    wait_timeout: float = 30.0
    """Time that a job waits for an engine that is loading or restarting."""
    continue_within_s: float = 60.0
    """Time that an admitted job waits for the next worker, to continue there. 0: it ends with a fault."""
    min_restart_delay: float = 0.1
    """Delay before the first restart, doubled after every worker that finished no job."""
    max_restart_delay: float = 30.0
    """Longest delay between two restarts."""
