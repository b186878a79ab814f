"""Model formats: prompt rendering, output parsing and grammars for each family of models.

One declaration per dialect serves all three. The package is pure: no torch, no asyncio, no clock, no randomness.
`format` is the interface that the other packages use, `detection` finds the dialect of a model.
"""
