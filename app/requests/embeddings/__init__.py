"""Parsers of requests to embedding and reranking models: JSON body → `EncoderRequest`."""
