"""The demo corpus: an English-German grammar with its lexicon, and random sentences of it."""
