"""The served models by name, wrappers of their engines, and the tokenizer of texts without a chat template."""
