"""The search: beam, greedy, or sampling, by one model or several."""
