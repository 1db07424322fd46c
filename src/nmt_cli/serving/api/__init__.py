"""The APIs: our own, LibreTranslate's and DeepL's."""
