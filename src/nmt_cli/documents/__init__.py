"""Documents: blocks of text with inline markup, and the formats that have them."""
