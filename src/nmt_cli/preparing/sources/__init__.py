"""Where a corpus comes from: kinds of sources, and what makes local files of them."""
