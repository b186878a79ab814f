"""The command line: its commands, their options, and the file of `--config`. Imports of it are light."""
