"""`nmt decode`: the command, its options, its files, and its output formats."""
