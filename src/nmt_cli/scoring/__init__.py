"""Scoring: metrics of translations."""
