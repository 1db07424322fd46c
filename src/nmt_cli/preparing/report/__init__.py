"""The report of prepared data: statistics, and a page for the browser."""
