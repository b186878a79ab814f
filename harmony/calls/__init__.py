"""Call formats: the syntaxes in which models write tool calls. Dialects are composed of them."""
