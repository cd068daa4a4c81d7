#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tokenizer_folders.json: which tokens begin, end and pad a text and which are special, for folders in which the
files of a tokenizer say different things, as transformers reads them; and what sentencepiece decodes.

Checkpoints that people have were written for transformers 4, whose precedences differ from those of 5: the versions
below are those of the golden. Every case is a folder, in full: changes to one of the base files and small files.
    pip install transformers==4.57.6 tokenizers==0.22.2 sentencepiece==0.2.3 protobuf
    make_tokenizer_folders.py > ../golden/tokenizer_folders.json
"""
import base64
import itertools
import json
import logging
import os
import pathlib
import random
import struct
import sys
import tempfile

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="critical")
try:
    import sentencepiece
    import tokenizers
    import transformers
except ImportError as error:
    sys.exit(f"make_tokenizer_folders: skipped, {error}")

TEXTS = ["a<x>ab <y> b", "ab", "c </s>a<s>"]
PIECES = ["▁", "a", "b", "▁a", "ab", "▁ab", "▁▁", "c"]
MERGES = ["a b", "▁ a", "▁a b", "▁ ab", "▁ ▁"]
SCORES = {"▁": -9, "a": -9, "b": -9, "c": -9, "▁a": -2, "ab": -1, "▁ab": -3, "▁▁": -4}
X, Y = 267, 268  # ids of <x> and <y>, that follow the vocabulary


def vocab():
    names = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)] + PIECES
    return {name: i for i, name in enumerate(names)}


def added(token_id, content, special=True, normalized=False, lstrip=False):
    return {"id": token_id, "content": content, "single_word": False, "lstrip": lstrip, "rstrip": False,
            "normalized": normalized, "special": special}


def template(token, token_id):
    def sides(name, type_id):
        return [{"SpecialToken": {"id": token, "type_id": type_id}}, {"Sequence": {"id": name, "type_id": type_id}}]
    return {"type": "TemplateProcessing", "single": sides("A", 0), "pair": sides("A", 0) + sides("B", 1),
            "special_tokens": {token: {"id": token, "ids": [token_id], "tokens": [token]}}}


def tokenizer_json():
    space = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    decoders = [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
                {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]
    return {"version": "1.0", "truncation": None, "padding": None,
            "added_tokens": [added(0, "<unk>"), added(1, "<s>"), added(2, "</s>")],
            "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, space]},
            "pre_tokenizer": None, "post_processor": None, "decoder": {"type": "Sequence", "decoders": decoders},
            "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None,
                      "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True, "ignore_merges": False,
                      "vocab": vocab(), "merges": MERGES}}


def sentencepiece_model():
    """A protobuf by hand: sentencepiece's trainer does not make a vocabulary that is given."""
    def field(number, data):
        return bytes([number << 3 | 2, len(data)]) + data
    pieces = b""
    for token_id, name in enumerate(vocab()):
        kind = 2 if token_id == 0 else 3 if token_id < 3 else 6 if token_id < 259 else 1
        score = struct.pack("<f", SCORES.get(name, 0))
        pieces += field(1, field(1, name.encode()) + b"\x15" + score + bytes([3 << 3, kind]))
    trainer = bytes([3 << 3, 2, 0x98, 0x02, 1])  # BPE, byte_fallback
    normalizer = field(1, b"identity") + bytes([3 << 3, 1, 4 << 3, 0, 5 << 3, 1])
    return pieces + field(2, trainer) + field(3, normalizer)


BASES = {"tokenizer.json": tokenizer_json(), "tokenizer.model": sentencepiece_model()}


def write(folder, case):
    """The folder of a case: `base`, `json` (keys of tokenizer.json that change), and small files."""
    name = case["base"]
    if name == "tokenizer.json":
        root = dict(BASES[name], **case.get("json", {}))
        if "more" in case:
            root["added_tokens"] = root["added_tokens"] + case["more"]
        (folder / name).write_text(json.dumps(root))
    else:
        (folder / name).write_bytes(BASES[name])
    for file, content in case["files"].items():
        (folder / file).write_text(json.dumps(content))


def facts(case):
    """What transformers makes of a case; None where it refuses."""
    with tempfile.TemporaryDirectory() as folder:
        write(pathlib.Path(folder), case)
        try:
            tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        except Exception:  # whatever its classes raise: no ids to compare with
            return None
    last = max(there(case).values())
    special = [i for i in [0, 1, 2, *range(259, last + 1)] if tokenizer.decode([i], skip_special_tokens=True) == ""
               and tokenizer.decode([i], skip_special_tokens=False) != ""]
    ids = [tokenizer(text)["input_ids"] for text in TEXTS]
    if tokenizer.bos_token == "" and ids[0][0] == tokenizer.unk_token_id:
        ids = [some[1:] for some in ids]
    roles = [tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token]
    return [there(case).get(role) for role in roles] + [special, ids]


def there(case):
    """Ids of the tokens that the files have. transformers gives a token that a key or a class names an id in any case;
    and where one is named "" it takes the unknown token for it, which here is none."""
    config = case["files"]["tokenizer_config.json"]
    more = {token["content"]: token["id"] for token in case.get("more", [])}
    if "added_tokens_decoder" in config:
        later = {token["content"]: int(i) for i, token in config["added_tokens_decoder"].items()}
    else:
        later = case["files"].get("added_tokens.json", {})
    return {**vocab(), **more, **later}


def named(case):
    for file in ("tokenizer_config.json", "special_tokens_map.json"):
        for key, value in case["files"].get(file, {}).items():
            if key.endswith("_token"):
                yield value["content"] if isinstance(value, dict) else value
            elif key == "additional_special_tokens":
                yield from value


def complete(case):
    """Whether every token that is named has an id."""
    return all(token in (None, "", True, False) or token in there(case) for token in named(case))


CLASSES = ["LlamaTokenizer", "LlamaTokenizerFast", "CodeLlamaTokenizer", "GemmaTokenizer", "PreTrainedTokenizerFast",
           "Qwen2Tokenizer", "GPT2Tokenizer", "llama", "mistral", "gemma", "qwen3"]
NAMED = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
FLAGS = {"single_word": False, "rstrip": False}
FILES = ["tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "config.json"]


def config(kind, **keys):
    """tokenizer_config.json, and config.json where the class follows from the model."""
    if kind[0].islower():
        return {"tokenizer_config.json": keys, "config.json": {"model_type": kind}}
    return {"tokenizer_config.json": dict(keys, tokenizer_class=kind)}


def written(token):
    return dict(FLAGS, content=token, lstrip=False, normalized=False, __type="AddedToken")


def plain(value):
    """special_tokens_map.json writes a token without its type."""
    return {k: v for k, v in value.items() if k != "__type"} if isinstance(value, dict) else value


def bos_cases():
    """Which class reads add_bos_token, and which of its values count."""
    names = [{}, {"bos_token": "<s>"}, {"bos_token": ""}, {"bos_token": None}, {"bos_token": written("</s>")},
             {"bos_token": "c"}]
    flags = [{}, {"add_bos_token": True}, {"add_bos_token": False}]
    for kind, post, flag, name in itertools.product(CLASSES, (True, False), flags, names):
        if kind.lower().startswith(("gemma", "gpt2")) and not name:
            continue  # the one of the class is not there
        keys = {"eos_token": "</s>", "unk_token": "<unk>", **name, **flag}
        yield {"base": "tokenizer.json", "json": {"post_processor": template("<s>", 1)} if post else {},
               "files": config(kind, **keys)}
    for kind, flag, name in itertools.product(["LlamaTokenizer", "CodeLlamaTokenizer", "llama"], flags, names[:5]):
        yield {"base": "tokenizer.model", "files": config(kind, **{"legacy": True, **name, **flag})}


def flag_cases():
    """Whose flags of <x> count: those of tokenizer.json, added_tokens_decoder, added_tokens.json, or of a key."""
    in_json = [None, added(X, "<x>", True), added(X, "<x>", False, True), added(X, "<x>", False, False, True)]
    decoders = [None, {}] + [{str(X): dict(FLAGS, content="<x>", special=s, lstrip=strip, normalized=False)}
                             for s, strip in itertools.product((True, False), (True, False))]
    named = [{}, {"additional_special_tokens": ["<x>"]}, {"pad_token": "<x>"}, {"eos_token": "<x>"}]
    for base, more, decoder, json_file, name in itertools.product(BASES, in_json, decoders, (None, {"<x>": X}), named):
        if base == "tokenizer.model" and more:
            continue
        for kind in ["LlamaTokenizer", "PreTrainedTokenizerFast"] if base == "tokenizer.json" else ["LlamaTokenizer"]:
            files = config(kind, **dict(NAMED, legacy=True, **{**({} if decoder is None else
                                                                  {"added_tokens_decoder": decoder})}) | name)
            if json_file:
                files["added_tokens.json"] = json_file
            case = {"base": base, "files": files}
            yield dict(case, more=[more]) if more else case


def map_cases():
    """special_tokens_map.json against tokenizer_config.json, with and without added_tokens_decoder."""
    values = [{}, {"pad_token": "</s>"}, {"bos_token": "c", "pad_token": "<unk>"}, {"bos_token": "", "eos_token": "<s>"},
              {"bos_token": None, "eos_token": written("<s>")}, {"additional_special_tokens": ["c", "<x>"]}]
    decoder = {str(i): dict(FLAGS, content=token, special=True, lstrip=False, normalized=False)
               for i, token in enumerate(["<unk>", "<s>", "</s>"])}
    for base, first, second, decoded in itertools.product(BASES, values, values, (None, {}, decoder)):
        keys = dict(NAMED, legacy=True, **({} if decoded is None else {"added_tokens_decoder": decoded}))
        files = config("LlamaTokenizer", **(keys | first))
        files["special_tokens_map.json"] = {key: plain(value) for key, value in second.items()}
        files["added_tokens.json"] = {"<x>": X, "<y>": Y}
        yield {"base": base, "files": files}


class Table:
    """Values by number: most of them are in many cases."""

    def __init__(self):
        self.values, self.numbers = [], {}

    def number(self, value):
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        if text not in self.numbers:
            self.numbers[text] = len(self.values)
            self.values.append(text)
        return self.numbers[text]


def row(case, table):
    """Numbers of: keys of tokenizer.json that change (or -1: the base is tokenizer.model), the files, the result."""
    changes = dict(case.get("json", {}), **({"more": case["more"]} if "more" in case else {}))
    base = table.number(changes) if case["base"] == "tokenizer.json" else -1
    return [base] + [table.number(case["files"][f]) if f in case["files"] else -1 for f in FILES] + [
        table.number(facts(case))]


def decoded():
    """Runs of byte tokens, whole and broken characters, among others: what SentencePiece makes of them."""
    rng = random.Random(20261128)
    processor = sentencepiece.SentencePieceProcessor(model_proto=BASES["tokenizer.model"])
    runs = []
    for _ in range(200):
        data = b"".join(rng.choice([b"\xe2\x82\xac", b"\xf0\x9f\x99\x82", b"\xc3\xa9", b"a", b"\xef\xbf\xbd", b"\xed\xa0\x80",
                                    bytes([rng.randrange(256)]), b"\xe2\x82", b"\xf0\x9f\x99"]) for _ in range(rng.randrange(1, 5)))
        ids = [3 + byte for byte in data[rng.randrange(2):]]
        for _ in range(rng.randrange(3)):
            ids.insert(rng.randrange(len(ids) + 1), rng.choice([260, 262, 264, 265, 266]))
        runs.append([ids, processor.decode(ids)])
    return runs


def main():
    logging.disable(logging.CRITICAL)
    table = Table()
    rows = [row(case, table) for case in itertools.chain(bos_cases(), flag_cases(), map_cases())
            if complete(case)]
    versions = {"transformers": transformers.__version__, "tokenizers": tokenizers.__version__,
                "sentencepiece": sentencepiece.__version__}
    head = {"generator": "make_tokenizer_folders.py", **versions, "texts": TEXTS, "files": FILES,
            "tokenizer.json": BASES["tokenizer.json"], "decoded": decoded(),
            "tokenizer.model": base64.b64encode(BASES["tokenizer.model"]).decode()}
    print(json.dumps(head, ensure_ascii=False, separators=(",", ":"))[:-1] + ',"values":[')
    print(",\n".join(table.values) + '],"cases":[')
    lines = [json.dumps(rows[i:i + 12], separators=(",", ":"))[1:-1] for i in range(0, len(rows), 12)]
    print(",\n".join(lines) + "]}")


if __name__ == "__main__":
    main()
