#!/usr/bin/env bash
# Makes what the measurements of docs/benchmarks/OPEN.md need, on any machine with a network: run it before you copy the checkout to the GPU.
#
# It needs the text that the loop names, from public corpora or of your own: mix-en-de/train and mix are training text.
set -euo pipefail
for text in {mix-en-de/train,tatoeba/{valid,test},newstest2013,multi30k/{train,val,test_2016_flickr}}.{en,de} newstest2013.fr mix.{en,fr}; do
  [[ -e $text ]] || { echo "missing: $text" >&2 && exit 1; }
done
pip download --no-deps --only-binary=:all: --python-version 3.12 --platform manylinux_2_17_x86_64 \
  --platform manylinux_2_28_x86_64 -d .whl -r benchmarks/gpu/wheels.txt
nmt prepare demo -o data/demo
nmt prepare --train mix-en-de/train --valid tatoeba/valid --languages en-de --set tokenizer.vocab_size=32000 -o runs/race/data
mkdir -p .gpu/text runs/six && cp -rT runs/race/data runs/six/data
for name in flickr=multi30k/test_2016_flickr tatoeba=tatoeba/test news=newstest2013; do
  for code in en de; do cp "${name#*=}.$code" ".gpu/text/${name%%=*}.$code"; done
done
nmt prepare --train mix-en-de/train --valid newstest2013 --languages en-de --set tokenizer.vocab_size=32000 -o data/mix
nmt prepare multi30k-en-de --set tokenizer.vocab_size=4000 -o data/multi30k-4k
paste mix-en-de/train.{en,de} | shuf -n 200000 --random-source=mix-en-de/train.en > .gpu/mix-200k.tsv
nmt prepare --train .gpu/mix-200k.tsv --valid tatoeba/valid --languages en-de --set tokenizer.vocab_size=8000 -o data/mix-200k
paste mix.en mix.fr | shuf -n 200000 --random-source=mix.en > .gpu/sample.tsv
cut -f 1 .gpu/sample.tsv > .gpu/sample.en && cut -f 2 .gpu/sample.tsv > .gpu/sample.fr
nmt prepare --train .gpu/sample --valid newstest2013 --languages en-fr --set tokenizer.vocab_size=32000 -o data/sample
nmt prepare wmt14-en-de -o data/wmt14-en-de
