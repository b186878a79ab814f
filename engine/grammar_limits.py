"""Limits of compiled grammars, for the engine's own matchers and those that follow a remote engine. Needs no torch."""

from llguidance import LLParserLimits

MAX_COMPILED_GRAMMARS = 64
"""Maximum number of compiled grammars kept for later requests. Agents send the same tools with every turn."""

PARSER_LIMITS = LLParserLimits(max_items_in_row=12_000)
"""An object with N optional properties of two types needs 4 N items in a row: the library's default of 2 000 ended its
output from 500 properties on. At this limit, a token takes up to 0.1 s. A remote engine may have a higher limit than
the default, so the matcher that follows it has the same one."""
