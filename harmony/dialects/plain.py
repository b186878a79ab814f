"""Dialect for unrecognized models: text, possibly after reasoning in `<think>`, and no tool calls."""

from antiphon.harmony.dialect import Dialect

PLAIN = Dialect(name="plain", models="any that calls no tools", think=("<think>", "</think>"))
