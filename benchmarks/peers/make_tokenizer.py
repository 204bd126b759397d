"""A small byte-level tokenizer for the peers: ``make_tokenizer.py PEERS_FOLDER TEXT_FILE`` (run it with a peer's Python)."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

peers, text = Path(sys.argv[1]), Path(sys.argv[2]).read_text()
tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
tokenizer.decoder = decoders.ByteLevel()
alphabet = pre_tokenizers.ByteLevel.alphabet()
tokenizer.train_from_iterator([text], trainers.BpeTrainer(vocab_size=2000, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet))
fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")
fast.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
fast.save_pretrained(peers / "tok")
revision = "0" * 40
cache = peers / "hf/hub/models--local--tok"
(cache / "refs").mkdir(parents=True, exist_ok=True)
(cache / "refs/main").write_text(revision)
shutil.copytree(peers / "tok", cache / "snapshots" / revision, dirs_exist_ok=True)
