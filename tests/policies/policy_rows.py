"""Pairs of texts, architectures, and each row's log-probs by itself."""

from __future__ import annotations

import torch

FAMILIES = ("llama", "qwen2", "gpt2", "neox", "opt", "t5")
CAUSAL = FAMILIES[:-1]
PAIRS = [
    ("How can I help you today?", "I know a good book."),
    ("Hi", "Yes, take the bread and put it in the oven for ten minutes."),
    ("The agent sees a red ball, and a blue key, and a green box. What now?", ""),
    ("x", "y"),
]


def rows_alone(policy, batch):
    """Return each row's log-probs from one unpadded call of transformers' own model."""
    model = policy.causal_model
    result = []
    for row in range(len(batch)):
        prompt = batch.prompt_ids[row][batch.prompt_mask[row]]
        response = batch.response_ids[row][batch.response_mask[row]]
        if policy.is_encoder_decoder:
            start = torch.tensor([model.config.decoder_start_token_id])
            decoder_ids = torch.cat((start, response[:-1]))[None]
            logits = model(input_ids=prompt[None], decoder_input_ids=decoder_ids).logits[0]
        else:
            logits = model(input_ids=torch.cat((prompt, response))[None]).logits[0]
            logits = logits[len(prompt) - 1 : -1]
        log_probs = logits.double().log_softmax(-1)
        result.append(log_probs.gather(1, response[:, None])[:, 0])
    return result
