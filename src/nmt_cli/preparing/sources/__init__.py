"""The sources of a corpus: a class for each kind."""
