"""SentencePiece: training, encoding, decoding, fingerprints."""
