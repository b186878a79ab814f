"""Serves the web page: the files of `antiphon.web` under `/ui/`, and the root of the server."""
