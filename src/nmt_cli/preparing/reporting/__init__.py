"""What prepared data is like: statistics and the page about it."""
