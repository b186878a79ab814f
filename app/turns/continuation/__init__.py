"""Responses that go on in another process than the one that began them."""
