"""The command line: one module a command; parse, call the wing, print."""
