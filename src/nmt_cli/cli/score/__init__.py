"""`nmt score`: the command, its options, and how scores are shown."""
