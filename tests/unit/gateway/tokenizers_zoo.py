"""Small real tokenizers of the kinds that models use, built without any download."""

from functools import cache

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

CORPUS = [
    "the quick brown fox jumps over the lazy dog, the end. " * 3,
    "def f(x):\n    return x + 1\n\n\nprint(f(2))",
    "naïve façade — 日本語のテキスト 👩‍👩‍👧 café",
]
ADDED = [
    AddedToken("<s>", special=True),
    AddedToken("</s>", special=True),
    AddedToken("héllo wörld", special=False),
    AddedToken("<tool>", special=False),
]


@cache
def byte_level() -> Tokenizer:
    """Like GPT-2, Llama 3, Qwen and SmolLM2."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens(ADDED)
    return tokenizer


@cache
def byte_fallback() -> Tokenizer:
    """Like Llama 2 and Mistral: spaces as ▁, unknown characters as byte tokens."""
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    words = ["▁", "▁the", "▁quick", "fox", "▁dog", "a", "b", "c", "▁a", "é", "日", "\n", "END", ".", "�"]
    vocab = {token: index for index, token in enumerate(["<unk>", *bytes_, *words])}
    tokenizer = Tokenizer(models.BPE(vocab, [], unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_tokens(ADDED)
    return tokenizer


@cache
def metaspace() -> Tokenizer:
    """Like T5 and XLNet."""
    tokenizer = Tokenizer(
        models.Unigram([("<unk>", 0.0), ("▁", -2.0), ("▁the", -1.0), ("dog", -3.0), ("s", -4.0)], 0)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_tokens(ADDED)
    return tokenizer


@cache
def word_piece() -> Tokenizer:
    """Like BERT: pieces inside a word start with ##."""
    words = ["[UNK]", "the", "dog", "##s", "##ged", ".", ",", "do", "n't", "'", "t"]
    tokenizer = Tokenizer(
        models.WordPiece({word: index for index, word in enumerate(words)}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"\s+"), "removed")
    tokenizer.decoder = decoders.WordPiece(cleanup=True)
    tokenizer.add_tokens(ADDED)
    return tokenizer


@cache
def suffix_bpe() -> Tokenizer:
    """Like the first GPT: the end of a word is marked, the last token loses its space."""
    words = ["the</w>", "do", "g</w>", "s</w>", "s", ".</w>"]
    tokenizer = Tokenizer(models.BPE({word: index for index, word in enumerate(words)}, []))
    tokenizer.decoder = decoders.BPEDecoder(suffix="</w>")
    tokenizer.add_tokens(ADDED)
    return tokenizer


@cache
def no_decoder() -> Tokenizer:
    """Tokens joined by spaces."""
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 1, "<unk>": 2}, unk_token="<unk>"))
    tokenizer.add_tokens(ADDED)
    return tokenizer


ALL = [byte_level, byte_fallback, metaspace, word_piece, suffix_bpe, no_decoder]
