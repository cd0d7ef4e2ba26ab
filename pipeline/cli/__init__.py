"""The command line: thin commands over functions."""
