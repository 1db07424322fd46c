"""Models for other programs and of other programs: export, import, and the comparison with our model."""
