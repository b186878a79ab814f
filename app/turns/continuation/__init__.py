"""Responses that continue in another process than the one that began them."""
