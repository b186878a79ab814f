"""Tools that this server runs during a response: servers of MCP, code, searches."""
