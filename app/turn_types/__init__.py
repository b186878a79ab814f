"""Data of turns: the event log, endings, figures, token details, reply forms, sealed texts, new ids."""
