"""Pictures for engines on other servers."""
