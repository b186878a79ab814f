"""Packs the experts of mixture models, and makes their routers exact."""
