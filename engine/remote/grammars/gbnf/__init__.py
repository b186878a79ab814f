"""Translation of grammars to GBNF, the syntax of llama.cpp's own grammars.

GBNF is context-free and knows neither intersections, complements nor shortest matches of regular expressions; these
become automata. What is translated generates a subset of the original grammar. What cannot be translated is refused.
"""

REFUSED_IN_GBNF = (
    "left recursion, %ignore and %import in Lark; classes of Unicode and operations on classes in regular expressions; "
    "allOf, fractions as bounds, and formats other than date, time, date-time, uuid, ipv4 and email in JSON Schemas"
)
"""The most common of what is refused, for the operator."""
