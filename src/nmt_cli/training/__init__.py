"""Training: loss, optimizer, schedule, checkpoints and the loop that joins them."""
