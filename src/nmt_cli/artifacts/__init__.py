"""Model directories and runs on disk."""
