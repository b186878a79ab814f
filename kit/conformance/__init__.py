"""Checks of a running server: cases from `kit/suites`, a client that reads raw bytes, a runner, and reports."""
