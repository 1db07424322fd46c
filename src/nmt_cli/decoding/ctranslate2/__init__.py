"""CTranslate2 as the second engine."""
