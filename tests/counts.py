"""Full or reduced test counts. `make test-full` sets `ANTIPHON_TEST_FULL=1`."""

import os

FULL_COUNTS = bool(os.environ.get("ANTIPHON_TEST_FULL"))
"""Tests run all splits, seeds and schemas instead of a sample."""
