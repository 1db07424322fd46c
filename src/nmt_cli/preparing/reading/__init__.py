"""Local files, read in chunks of pairs."""
