"""Options that the operator chooses at the start: of the server, its models, remote engines and API keys."""
