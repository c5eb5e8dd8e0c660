"""RoBERTa and XLM-RoBERTa: as BERT, except that positions are counted from behind the padding's.

A text's first token has position `pad_token_id` + 1, so the rows before it are never read, and a
model with 514 rows takes 512 tokens.

References: Liu et al. 2019 (arXiv 1907.11692); Conneau et al. 2019 (arXiv 1911.02116);
`transformers`, modeling_roberta.py and modeling_xlm_roberta.py.
"""

from dataclasses import replace

from ane_book.models.base.architecture import Checkpoint
from ane_book.models.bert import Bert, BertConfig


class Roberta(Bert):
    """`model_type` "roberta": all-distilroberta and its like."""

    model_type = "roberta"

    def checkpoint(self, config: BertConfig) -> Checkpoint:
        return replace(super().checkpoint(config), base="roberta.")

    def skipped(self, fields: dict) -> int:
        padding = fields.get("pad_token_id", 1)
        return 2 if padding is None else padding + 1


class XLMRoberta(Roberta):
    """`model_type` "xlm-roberta": BGE-M3's dense vectors, multilingual E5."""

    model_type = "xlm-roberta"
