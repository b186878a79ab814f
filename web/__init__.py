"""The web page: static files that `antiphon.app.page` serves under `/ui/`. It has no Python and no build step."""
