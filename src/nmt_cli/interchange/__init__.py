"""Models for other programs and from them: CTranslate2 and Hugging Face directories, compared with ours."""
