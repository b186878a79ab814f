"""Call formats: the ways in which models write tool calls. Dialects are declared from them."""
