"""Variants of attention: chunks, shared keys, LongRoPE, selected keys; and the models that cannot be packed."""
