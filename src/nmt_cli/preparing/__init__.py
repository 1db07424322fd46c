"""Preparation of a corpus: `pipeline.py` has its stages in order."""
