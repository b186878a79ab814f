"""What the model meant: every model's dialect, brought into one tune.

A dialect renders the prompt, reads the answer and says what an answer may be, all from one declaration. The package
is pure: no torch, no asyncio, no clock, no chance. `format` is what the rest of the house talks to, `choose` finds the
dialect of a model.
"""
