"""The command line: thin commands over functions, one file a group.

``main`` holds the entry and the exit codes, ``command`` what commands share; the other files hold
the commands. It may import every other room, and nothing imports it. What is heavy is imported
inside the command that uses it, so that ``--help`` answers at once.
"""
