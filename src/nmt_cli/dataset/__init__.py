"""Prepared data on disk, the plan of an epoch, and batches."""
