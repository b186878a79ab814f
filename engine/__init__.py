"""The inference engine: token ids in, token ids out.

The engine handles ids and never text: no tokenizer, no template, no dialect. `engine.protocol` is the interface that
the other packages use; `engine.scripted.engine` replays a script; `engine.process.client` runs a model and needs
the extra `torch`. This file imports nothing, so that the first two stay light.
"""
