"""Embedding and reranking models: their tokenizer, and jobs on their engine."""
