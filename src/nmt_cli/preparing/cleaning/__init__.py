"""Which pairs are kept: rules, duplicates, overlap, swapped sides."""
