"""Preparing a corpus: reading, cleaning, reporting, tokenising."""
