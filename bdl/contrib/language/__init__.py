"""Text, a small GPT, pretrained language models and low-rank adapters."""
