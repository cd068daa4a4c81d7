# SPDX-License-Identifier: Apache-2.0
"""lm-evaluation-harness in process: python -m stoch.lm_eval --model stoch --model_args model=DIR,sc=... --tasks ...

The command line is the harness's own, after the model class `stoch` is registered. In model_args `;` separates settings
of sc, and `pretrained` is another name of `model`.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

import stoch

if TYPE_CHECKING:
    _Base = Any
else:
    try:
        from lm_eval.api.model import TemplateLM as _Base
        from lm_eval.api.registry import register_model
    except ImportError:
        raise ImportError("stoch.lm_eval needs lm_eval: pip install lm_eval") from None

_Pair = tuple[tuple[str, str], list[int], list[int]]


class StochLM(_Base):  # type: ignore[misc]
    """A model of stoch as the harness asks for one. `model` is a folder, random:SHAPE, or a stoch.Model."""

    backend = "causal"

    def __init__(
        self,
        model: str | os.PathLike[str] | stoch.Model | None = None,
        pretrained: str | os.PathLike[str] | None = None,
        sc: str | None = None,
        max_gen_toks: int = 256,
        max_length: int | None = None,
        batch_size: int | str | None = None,
        max_batch_size: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        chosen = pretrained if model is None else model
        if chosen is None:
            raise stoch.InvalidInput("model_args: give model=DIR")
        if isinstance(chosen, stoch.Model):
            self.model = chosen
        else:
            batch = int(batch_size) if batch_size is not None and str(batch_size).isdecimal() else 8
            if options.get("device") is None:
                options.pop("device", None)
            self.model = stoch.load(
                chosen,
                sc=None if sc is None else str(sc).replace(";", ","),
                batch=max(batch, 1),
                context=0 if max_length is None else int(max_length),
                **options,
            )
        self._max_gen_toks = int(max_gen_toks)
        self._is_chat = False  # the harness renders chat templates

    @classmethod
    def create_from_arg_obj(cls, arg_dict: dict[str, Any], additional_config: dict[str, Any] | None = None) -> StochLM:
        """The harness's options are defaults: what model_args say of `device` or `batch_size` wins."""
        defaults = {name: value for name, value in (additional_config or {}).items() if value is not None}
        return cls(**{**defaults, **arg_dict})

    @classmethod
    def create_from_arg_string(cls, arg_string: str, additional_config: dict[str, Any] | None = None) -> StochLM:
        """The same, from model_args as text."""
        utils = importlib.import_module("lm_eval.utils")
        return cls.create_from_arg_obj(utils.simple_parse_args_string(arg_string), additional_config)

    @property
    def eot_token_id(self) -> int:
        return self.model.eos_ids[0]

    @property
    def prefix_token_id(self) -> int:
        return int(self.model.config["bos_token_id"])

    @property
    def max_length(self) -> int:
        return self.model.context

    @property
    def max_gen_toks(self) -> int:
        return self._max_gen_toks

    @property
    def tokenizer_name(self) -> str:
        return self.model.name

    def chat_template(self, chat_template: bool | str = False) -> str:
        """The template that --apply_chat_template renders with, which the harness records; "" without that option."""
        if chat_template is False or chat_template is None:
            return ""
        if chat_template is not True:
            raise stoch.InvalidInput(f"chat_template = {chat_template!r}: name it as chat_template=FILE in model_args")
        return self.model.chat_template

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """A conversation as text; from now on texts are read as a template writes them, special tokens among them."""
        self._is_chat = True
        return self.model.apply_chat_template(
            chat_history,
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=not add_generation_prompt,
        )

    def _tokenize(self, text: str, add_bos: bool = True) -> list[int]:
        """Ids of a text. That of a template begins as the template says."""
        return self.model.tokenize(text, add_bos=add_bos and not self._is_chat, parse_special=self._is_chat)

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """Ids of a text; the harness adds the prefix itself where a context is empty."""
        return self._tokenize(string, add_bos=bool(add_special_tokens))

    def tok_decode(self, tokens: list[int], **_: Any) -> str:
        return self.model.detokenize(tokens)

    def _encode_pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """Ids of both, cut where the ids of the context end; spaces at its end belong to the continuation."""
        spaces = len(context) - len(context.rstrip())
        if spaces > 0:
            continuation = context[-spaces:] + continuation
            context = context[:-spaces]
        whole = self._tokenize(context + continuation)
        first = self._tokenize(context)
        return whole[: len(first)], whole[len(first) :]

    def _loglikelihood_tokens(
        self, requests: list[_Pair], disable_tqdm: bool = False, **_: Any
    ) -> list[tuple[float, bool]]:
        most = self.max_length
        pairs = []
        for _texts, context, continuation in requests:
            if len(continuation) > most:
                raise stoch.InvalidInput(f"a continuation has {len(continuation)} tokens, the context {most}")
            kept = (context + continuation)[-(most + 1) :]
            cut = len(kept) - len(continuation)
            pairs.append((kept[:cut], kept[cut:]))
        # Longest first: a request that does not fit in memory is found at once.
        order = sorted(range(len(pairs)), key=lambda i: -len(pairs[i][0]) - len(pairs[i][1]))
        scores = self.model.loglikelihood([pairs[i] for i in order], progress=None if not disable_tqdm else False)
        results: list[tuple[float, bool]] = [(0.0, False)] * len(pairs)
        for i, score in zip(order, scores, strict=True):
            results[i] = score
            if requests[i][0] is not None:
                self.cache_hook.add_partial("loglikelihood", requests[i][0], score)
        return results

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
        """The log-probability of whole texts, in windows that do not overlap, the prefix in front of the first."""
        utils = importlib.import_module("lm_eval.utils")
        totals = []
        for (text,) in (request.args for request in requests):
            windows = utils.get_rolling_token_windows(
                token_list=self.tok_encode(text),
                prefix_token=self.prefix_token_id,
                max_seq_len=self.max_length,
                context_len=1,
            )
            pairs = [utils.make_disjoint_window(window) for window in windows]
            scores = self._loglikelihood_tokens([(("", ""), *pair) for pair in pairs], disable_tqdm=disable_tqdm)
            total = sum(logprob for logprob, _ in scores)
            totals.append(total)
            self.cache_hook.add_partial("loglikelihood_rolling", (text,), total)
        return totals

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        """Texts up to a stop string; requests of equal options run together."""
        groups: dict[str, list[int]] = {}
        for i, request in enumerate(requests):
            groups.setdefault(repr(sorted(request.args[1].items())), []).append(i)
        texts = [""] * len(requests)
        for members in groups.values():
            options = dict(requests[members[0]].args[1])
            until = options.get("until") or []
            stop = [until] if isinstance(until, str) else list(until)
            tokens = int(options.get("max_gen_toks", self.max_gen_toks))
            sampled = bool(options.get("do_sample", float(options.get("temperature", 0.0)) > 0))
            prompts = [
                self._tokenize(requests[i].args[0])[-max(1, self.max_length - tokens) :] for i in members
            ]
            results = self.model.generate(
                prompts,
                max_tokens=tokens,
                stop=[text for text in stop if text],
                temperature=float(options.get("temperature", 1.0)) if sampled else 0.0,
                top_p=float(options.get("top_p", 1.0)),
                top_k=int(options.get("top_k", 0)),
                hash_logits=False,
                progress=False if disable_tqdm else None,
            )
            for i, result in zip(members, results, strict=True):
                texts[i] = result.text
                self.cache_hook.add_partial("generate_until", requests[i].args, result.text)
        return texts


# Run as a program this file is __main__, and imports itself under the name by which others import it: one registers.
if not TYPE_CHECKING and __name__ != "__main__":
    StochLM = register_model("stoch")(StochLM)


def main() -> None:
    """The harness's command line."""
    importlib.import_module("lm_eval.__main__").cli_evaluate()


if __name__ == "__main__":
    importlib.import_module("stoch.lm_eval").main()
    sys.exit(0)
