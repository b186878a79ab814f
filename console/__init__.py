"""The console of this server: commands that talk to one that runs, in a terminal or a pipe."""
