"""A Marian directory, written by train.py --save or by `nmt export --to huggingface`, as a CTranslate2 directory.

python benchmarks/peers/to_ctranslate2.py MARIAN source.spm OUTPUT --precision int8
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import sentencepiece
from ctranslate2.converters.transformers import BartLoader, MarianMTLoader
from transformers import MarianMTModel


class _Loader(MarianMTLoader):
    """CTranslate2's loader, for models whose last row is no <pad>, and whose decoder does not start with <pad>."""

    def _remove_pad_weights(self, spec: Any) -> None:
        pass

    def set_decoder(self, spec: Any, decoder: Any) -> None:
        """Fill the decoder, without Marian's start."""
        BartLoader.set_decoder(self, spec, decoder)


def main() -> None:
    """Convert the model, and quantise its weights if --precision asks for it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("marian", metavar="MARIAN")
    parser.add_argument("spm", metavar="SPM")
    parser.add_argument("output", metavar="OUTPUT", type=Path)
    parser.add_argument("--precision", default="float32", help="float32, int8, ...")
    arguments = parser.parse_args()
    tokenizer = sentencepiece.SentencePieceProcessor(model_file=arguments.spm)
    pieces = [tokenizer.id_to_piece(i) for i in range(tokenizer.vocab_size())]
    spec = _Loader().get_model_spec(MarianMTModel.from_pretrained(arguments.marian).float().eval())
    spec.register_source_vocabulary(pieces)
    spec.register_target_vocabulary(pieces)
    spec.config.bos_token = spec.config.decoder_start_token = "<s>"
    spec.config.eos_token, spec.config.unk_token, spec.config.add_source_eos = "</s>", "<unk>", True
    spec.validate()
    spec.optimize(quantization=None if arguments.precision == "float32" else arguments.precision)
    arguments.output.mkdir(parents=True, exist_ok=True)
    spec.save(str(arguments.output))


if __name__ == "__main__":
    main()
