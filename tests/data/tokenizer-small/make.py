"""Makes tokenizer.json: a byte-level BPE small enough to read, built like those of real models.

Run it from this directory; the same input gives the same file.
"""

import collections
import json
import re

MERGES = 160
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>"]
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEXT = """
The keeper of the light wrote one line a day: the wind, the swell, the ships that passed.
You are a helpful assistant. You may call one or more functions to assist with the user query.
user system assistant tool function name description parameters type object string properties
What is the weather in the north of the country today? It is cold and the harbour is closed.
for the and that with this from there then when where which what have not are was were been
"""


def byte_letters():
    """Byte to printable letter, as byte-level tokenizers write their vocabulary."""
    plain = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    letters = {byte: chr(byte) for byte in plain}
    return letters | {byte: chr(256 + index) for index, byte in enumerate(others)}


def train(words, merges):
    pairs_of_words = {word: tuple(word) for word in words}
    made = []
    for _ in range(merges):
        pairs = collections.Counter()
        for word, parts in pairs_of_words.items():
            for pair in zip(parts, parts[1:]):
                pairs[pair] += words[word]
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        made.append(best)
        for word, parts in pairs_of_words.items():
            pairs_of_words[word] = merged(parts, best)
    return made


def merged(parts, pair):
    out, index = [], 0
    while index < len(parts):
        if parts[index : index + 2] == pair:
            out.append(pair[0] + pair[1])
            index += 2
        else:
            out.append(parts[index])
            index += 1
    return tuple(out)


letters = byte_letters()
words = collections.Counter(
    "".join(letters[byte] for byte in word.encode())
    for word in re.findall(r" ?[A-Za-z]+|\s|[^\sA-Za-z]", TEXT)
)
merges = train(words, MERGES)
vocab = {letter: index for index, letter in enumerate(sorted(letters.values()))}
for left, right in merges:
    vocab.setdefault(left + right, len(vocab))
flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
added = [
    {"id": len(vocab) + index, "content": content, **flags, "special": content.startswith("<|")}
    for index, content in enumerate(SPECIAL)
]
tokenizer = {
    "version": "1.0",
    "truncation": None,
    "padding": None,
    "added_tokens": added,
    "normalizer": {"type": "NFC"},
    "pre_tokenizer": {
        "type": "Sequence",
        "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": PATTERN}, "behavior": "Isolated", "invert": False},
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
        ],
    },
    "post_processor": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
    "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
    "model": {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": "",
        "end_of_word_suffix": "",
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        "vocab": vocab,
        "merges": [f"{left} {right}" for left, right in merges],
    },
}
with open("tokenizer.json", "w", encoding="utf-8") as file:
    json.dump(tokenizer, file, ensure_ascii=False, separators=(",", ":"))
    file.write("\n")
