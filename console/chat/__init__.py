"""A conversation with a server in a terminal, over the Responses, the chat or the Messages API."""
