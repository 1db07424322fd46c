"""The paper's experiments as one command: prepare, train, average, decode, score, and compare with the paper."""
