"""tokens.npz: what Hugging Face tokenizers gives, for a BPE, a WordPiece and a Unigram tokenizer trained here on a few lines
(needs tokenizers). Their files are kept beside the numbers: bpe.json, wordpiece.json, unigram.json."""
from __future__ import annotations

from make import HERE, kept
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

LINES = 4 * [
    "the quick brown fox jumps over the lazy dog", "pack my box with five dozen liquor jugs",
    "how vexingly quick daft zebras jump",
    "naïve cafés in Zürich serve crème brûlée", "tokens, words; numbers: 12, 345 and 6789!", "ﬁne – “quoted” text…",
    "日本語 and emoji 🙂"]


def bpe() -> Tokenizer:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.train_from_iterator(LINES, trainers.BpeTrainer(vocab_size=400, special_tokens=["<|endoftext|>"], show_progress=False,
                                                        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return made


def wordpiece() -> Tokenizer:
    made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.train_from_iterator(LINES, trainers.WordPieceTrainer(vocab_size=300, show_progress=False,
                                                              special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]))
    made.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]",
                                                        special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    return made


def unigram() -> Tokenizer:
    made = Tokenizer(models.Unigram())
    made.normalizer = normalizers.NFKC()
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.train_from_iterator(LINES, trainers.UnigramTrainer(vocab_size=200, unk_token="<unk>", show_progress=False,
                                                            special_tokens=["<unk>", "</s>"]))
    made.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return made


def ids(name: str, text: str, most: int = 0, special: bool = True) -> list[int]:
    tokenizer = Tokenizer.from_file(str(HERE / f"{name}.json"))
    if most:
        tokenizer.enable_truncation(most)
    return tokenizer.encode(text, add_special_tokens=special).ids


for kind in (bpe, wordpiece, unigram):
    kind().save(str(HERE / f"{kind.__name__}.json"), pretty=False)
texts = {"plain": "the quick brown fox", "accents": "Crème brûlée – ﬁne, naïve!", "empty": "",
         "strange": "日本語 🙂 \u2028 12345\tx"}
kept("tokens", texts, {"ids": ids})
