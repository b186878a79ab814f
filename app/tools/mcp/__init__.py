"""The client of MCP servers: connections, lists, calls and their results."""
