"""Full or reduced test counts: `make test-full` sets `ANTIPHON_TEST_FULL=1`."""

import os

FULL_COUNTS = bool(os.environ.get("ANTIPHON_TEST_FULL"))
"""Every cut, every seed, every schema instead of a sample."""
