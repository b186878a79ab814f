"""WHAT TOKEN NEXT: token ids in, token ids out.

The engine knows ids and never text: no tokenizer, no template, no dialect. ``engine.protocol`` is what the rest of
the house talks to; ``engine.scripted.engine`` replays a script; ``engine.process.client`` runs a model and needs the
extra ``torch``. Nothing is imported here, so that the first two stay light.
"""
