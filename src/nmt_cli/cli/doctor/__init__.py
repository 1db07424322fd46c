"""`nmt doctor`: what this installation and this machine have, and what is slow about them."""
