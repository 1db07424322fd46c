"""Recipes: the typed schema and its loading from YAML."""
