"""Embedding and reranking models: endpoints, bodies, replies, and jobs on their engines. Only `main` imports it."""
