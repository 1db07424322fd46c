"""Serving: models behind HTTP, their requests batched together, and a page to translate on."""
