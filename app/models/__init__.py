"""Several models in one server: which are loaded, when they are unloaded, and how much memory they may take."""
