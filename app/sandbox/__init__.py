"""Processes for what clients send: grammars, templates, and below `media` pictures and PDFs. One driver, one loop."""
