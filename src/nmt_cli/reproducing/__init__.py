"""The paper's experiments as one command: prepare, train, average, decode, score, beside what is expected."""
