"""Loads transformers models; large weights can stay in the model's files until they are used."""
