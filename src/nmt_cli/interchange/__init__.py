"""Export to CTranslate2 and Hugging Face, import from Hugging Face, and the comparison with our model."""
