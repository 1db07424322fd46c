"""The processes of one training: joined, launched, watched, and their gradients summed."""
