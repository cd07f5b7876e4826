#!/usr/bin/env python3
"""Writes gguf/encoders/: encoders of encoders.py as llama.cpp converts them to GGUF, each with the
tokenizer.json that belongs into the model's folder.

    LLAMA_CPP=path/to/llama.cpp python3 tests/golden/gguf_encoders.py

LLAMA_CPP is its source tree; torch, transformers and tokenizers are needed as well. The tokenizers have
the kinds of the real models (WordPiece, byte-level BPE, Unigram) and the 48 tokens of these small
ones. Only the name of the rule that splits text, which the converter finds by hashes of real
tokenizers, is given. Made with llama.cpp of llama-cpp-python 0.3.36 and transformers 5.24."""
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

LLAMA_CPP = os.environ["LLAMA_CPP"]
sys.path[:0] = [LLAMA_CPP, os.path.join(LLAMA_CPP, "gguf-py")]
import gguf
import tokenizers
import torch
from conversion import ModelBase, get_model_class
from conversion.base import ModelType, get_model_architecture
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

HERE = Path(os.path.dirname(os.path.abspath(__file__)))
FOLDER = HERE / "gguf" / "encoders"
# names of the tokens in both kinds of models: unknown, padding, begin, end
BERT = ["[UNK]", "[PAD]", "[CLS]", "[SEP]"]
ROBERTA = ["<unk>", "<pad>", "<s>", "</s>"]
WORDS = ("the a tea song train garden dog is was lovely great awful bad and very my old new ##s ##ly "
         "##er ##ing").split()
LETTERS = "abdeghilmnorstuvwy"


def mask_of(names):
    return names[0].replace("UNK", "MASK").replace("unk", "mask")


def padded(tokens):
    """48 tokens, the last of which is the mask's."""
    return tokens + ["unused%d" % i for i in range(47 - len(tokens))] + [mask_of(tokens)]


def template(begin, end, pair):
    return processors.TemplateProcessing(single=f"{begin} $A {end}", pair=pair,
                                         special_tokens=[(begin, 2), (end, 3)])


def wordpiece():
    vocabulary = padded(BERT + WORDS)
    t = tokenizers.Tokenizer(models.WordPiece({w: i for i, w in enumerate(vocabulary)},
                                              unk_token="[UNK]"))
    t.normalizer = normalizers.BertNormalizer()
    t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    t.decoder = decoders.WordPiece()
    t.post_processor = template("[CLS]", "[SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1")
    return t


def bpe(names, modern):
    merges = [("t", "h"), ("th", "e"), ("\u0120", "the"), ("\u0120", "t"), ("e", "a"),
              ("\u0120t", "ea"), ("l", "o"), ("\u0120", "d"), ("\u0120", "b"), ("i", "s")]
    vocabulary = padded(names + list(LETTERS) + ["\u0120"] + [a + b for a, b in merges])
    t = tokenizers.Tokenizer(models.BPE({w: i for i, w in enumerate(vocabulary)}, merges))
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    if modern:
        t.normalizer = normalizers.NFC()
        t.post_processor = template("[CLS]", "[SEP]", "[CLS] $A [SEP] $B [SEP]")
    else:
        t.post_processor = processors.RobertaProcessing(("</s>", 3), ("<s>", 2),
                                                        add_prefix_space=False)
    return t


def unigram():
    """XLM-RoBERTa's, with the characters' map of tokenizer/xlmr."""
    with open(HERE / "tokenizer" / "xlmr" / "tokenizer.json", encoding="utf-8") as file:
        base = json.load(file)
    pieces = [piece for piece in base["model"]["vocab"][4:] if len(piece[0]) < 4][:43] + [["<mask>", 0.0]]
    base["model"].update(vocab=[[w, 0.0] for w in ROBERTA] + pieces, unk_id=0)
    base["post_processor"].update(sep=["</s>", 3], cls=["<s>", 2])
    base["added_tokens"] = []
    return tokenizers.Tokenizer.from_str(json.dumps(base))


MODELS = {  # name: (tokenizer, its class, names of its tokens, rule that splits text)
    "bert": (wordpiece, "BertTokenizer", BERT, "bert-bge"),
    "bert_embed": (wordpiece, "BertTokenizer", BERT, "bert-bge"),
    "distilbert": (wordpiece, "BertTokenizer", BERT, "bert-bge"),
    "roberta": (lambda: bpe(ROBERTA, False), "RobertaTokenizer", ROBERTA, "roberta-bpe"),
    "xlm_roberta": (unigram, "XLMRobertaTokenizer", ROBERTA, ""),
    "modernbert": (lambda: bpe(BERT, True), "PreTrainedTokenizerFast", BERT, "modern-bert"),
}


def write_tokenizer(name, folder):
    make, kind, names, _ = MODELS[name]
    t = make()
    t.add_special_tokens(names + [mask_of(names)])
    t.save(str(folder / "tokenizer.json"))
    keys = dict(zip(("unk_token", "pad_token", "cls_token", "sep_token"), names), tokenizer_class=kind,
                mask_token=mask_of(names))
    if names is ROBERTA:
        keys.update(bos_token="<s>", eos_token="</s>")
    (folder / "tokenizer_config.json").write_text(json.dumps(keys))


def convert(name, folder):
    parameters = ModelBase.load_hparams(folder, False)
    model = get_model_class(get_model_architecture(parameters, ModelType.TEXT))
    model.get_vocab_base_pre = lambda self, tokenizer: MODELS[name][3]
    with torch.inference_mode():
        model(folder, gguf.LlamaFileType.ALL_F32, FOLDER / (name + ".gguf"), eager=True,
              model_name="golden").write()


def main():
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    for name in MODELS:
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary) / "model"
            shutil.copytree(HERE / "encoders" / name, folder)
            write_tokenizer(name, folder)
            if name == "bert_embed":
                pooling = folder / "1_Pooling"
                pooling.mkdir()
                (pooling / "config.json").write_text(json.dumps({"pooling_mode_cls_token": True}))
                (folder / "modules.json").write_text(json.dumps(
                    [{"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"}]))
            convert(name, folder)
            shutil.copy(folder / "tokenizer.json", FOLDER / (name + ".json"))


main()
