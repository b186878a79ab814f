"""`antiphon top`: the turns that run on a server, once a second."""
