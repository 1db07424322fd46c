"""Worker processes that hold the models."""
