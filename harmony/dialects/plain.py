"""A model of which nothing is known but that it writes text, perhaps after thinking in `<think>`."""

from antiphon.harmony.dialect import Dialect

PLAIN = Dialect(name="plain", models="any that calls no tools", think=("<think>", "</think>"))
