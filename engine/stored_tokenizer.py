"""A tokenizer from what an earlier start kept: ready at once, its chat template when first used."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import Tokenizer

from engine.prepared import Vocabulary


class StoredTokenizer:
    """What engine.text asks of a transformers tokenizer, with the same answers."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.backend_tokenizer = Tokenizer.from_str(vocabulary.definition)
        self.chat_template = vocabulary.template
        self.bos_token = vocabulary.special.get("bos_token")
        self.eos_token = vocabulary.special.get("eos_token")
        self.unk_token = vocabulary.special.get("unk_token")
        self._special = vocabulary.special
        if self.chat_template is not None:  # while the weights are read, which needs no Python
            threading.Thread(target=_renderer, name="template", daemon=True).start()

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, str]],
        *,
        add_generation_prompt: bool,
        tokenize: bool,
    ) -> str:
        """The chat as text. Raises what the template raises."""
        assert not tokenize
        rendered, _ = _renderer()(
            conversations=[[dict(message) for message in messages]],
            chat_template=self.chat_template,
            add_generation_prompt=add_generation_prompt,
            **self._special,
        )
        return rendered[0]


def _renderer() -> Any:
    """transformers' own way with a chat template."""
    from transformers.utils.chat_template_utils import render_jinja_template

    return render_jinja_template
