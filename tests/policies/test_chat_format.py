"""Chat templates of many families: what is trained is what the template writes, and reads back."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AddedToken

from llm_agents.data.base import DropReport
from llm_agents.data.encoding import SplitEncoder, TextLimits
from llm_agents.policies.language_policy import LanguagePolicy
from llm_agents.policies.text import TextCodec
from llm_agents.policies.tiny import tiny_tokenizer
from llm_agents.types import Turn

THINK = "<think>\n\n</think>\n\n"
# Name → (template, end of a turn, other marks, what it puts before the answer beside the prompt).
# Written after the families' own files; `trim` stands where theirs does.
# ruff: noqa: E501
FAMILIES: dict[str, tuple[str, str, tuple[str, ...], str]] = {
    "chatml": (
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>' + '\n' }}"
        "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
        "<|im_end|>",
        ("<|im_start|>",),
        "",
    ),
    "llama-2": (
        "{% for m in messages %}{% if m.role == 'user' %}{{ bos_token + '[INST] ' + m.content | trim "
        "+ ' [/INST]' }}{% else %}{{ ' ' + m.content | trim + ' ' + eos_token }}{% endif %}"
        "{% endfor %}",
        "</s>",
        (),
        " ",
    ),
    "llama-3": (
        "{% for m in messages %}{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' + "
        "m.content | trim + '<|eot_id|>' }}{% endfor %}{% if add_generation_prompt %}"
        "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}",
        "<|eot_id|>",
        ("<|start_header_id|>", "<|end_header_id|>"),
        "",
    ),
    "gemma": (
        "{{ bos_token }}{% for m in messages %}{{ '<start_of_turn>' + ('model' if m.role == "
        "'assistant' else m.role) + '\n' + m.content | trim + '<end_of_turn>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}",
        "<end_of_turn>",
        ("<start_of_turn>",),
        "",
    ),
    "mistral": (
        "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}{{ '[INST]' + m.content + "
        "'[/INST]' }}{% else %}{{ m.content + eos_token }}{% endif %}{% endfor %}",
        "</s>",
        ("[INST]", "[/INST]"),
        "",
    ),
    "qwen3": (
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% if m.role == 'assistant' and "
        "loop.last %}{{ '<think>\n\n</think>\n\n' + m.content.strip('\n') }}{% else %}"
        "{{ m.content }}{% endif %}{{ '<|im_end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
        "<|im_end|>",
        ("<|im_start|>", "<think>", "</think>"),
        THINK,
    ),
    "phi-3": (
        "{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content + '<|end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}",
        "<|end|>",
        ("<|user|>", "<|assistant|>"),
        "",
    ),
    "zephyr": (
        "{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content + eos_token + '\n' }}"
        "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}",
        "</s>",
        (),
        "",
    ),
    "r1": (  # its prompt opens a think block that a whole dialogue doesn't show
        "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}{{ '<|User|>' + m.content }}"
        "{% else %}{{ '<|Assistant|>' + m.content + eos_token }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|Assistant|><think>\n' }}{% endif %}",
        "</s>",
        ("<|User|>", "<|Assistant|>"),
        "",
    ),
}
TRIMS = {"llama-2", "llama-3", "gemma"}


def codec(name: str, *, special: bool = True) -> TextCodec:
    template, end, marks, _ = FAMILIES[name]
    tokenizer = tiny_tokenizer("llama")
    names = [mark for mark in (end, *marks) if mark != "</s>"]
    tokenizer.add_tokens([AddedToken(mark, special=special) for mark in names])
    tokenizer.chat_template = template
    found = TextCodec(tokenizer, is_encoder_decoder=False)
    found.context_length = None
    return found


CODECS = {
    (name, special): codec(name, special=special) for name in FAMILIES for special in (False, True)
}
ANY = pytest.mark.parametrize("family", CODECS, ids=lambda key: f"{key[0]}-{key[1]}")
WORDS = st.text(
    st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="<>|[]"),
    min_size=1,
    max_size=40,
).map(str.strip)


def whole(text: TextCodec, answer: str) -> str:
    """Return what transformers writes for a question and an answer."""
    messages = [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": answer}]
    return str(text.tokenizer.apply_chat_template(messages, tokenize=False))


@ANY
@settings(max_examples=15, deadline=None)
@given(answer=WORDS.filter(bool))
def test_an_answer_is_encoded_as_the_template_writes_it_and_decoded_to_itself(
    family: tuple[str, bool], answer: str
) -> None:
    text, (_, end, _, _) = CODECS[family], FAMILIES[family[0]]
    ids = text.encode_response(answer, template="chat")
    end_id = text.tokenizer.convert_tokens_to_ids(end)
    assert ids[-1] == end_id
    assert ids.count(end_id) == 1
    assert text.decode(ids) == answer
    assert text.decode(ids[:-1]) == answer  # cut by the limit, or generated up to a stop
    if family[0] == "r1":
        return
    prompt = text.encode_prompt((Turn("user", "Why?"),), template="chat")
    right = text.encode_text(whole(text, answer), begin=True)
    right = right[: len(right) - right[::-1].index(end_id)]  # nothing behind the end of the turn
    assert [*prompt, *ids] == right


@ANY
@pytest.mark.parametrize("template", ["alol", "plain", "eos", "verbatim"])
def test_the_other_templates_end_with_the_tokenizers_end_token(
    family: tuple[str, bool], template: Any
) -> None:
    ids = CODECS[family].encode_response("Yes, I can.", template=template)
    assert ids[-1] == CODECS[family].tokenizer.eos_token_id
    assert CODECS[family].decode(ids) == "Yes, I can."


@ANY
@pytest.mark.parametrize("answer", ["  Sure \n", "\n\nSure", "Sure   "])
def test_blanks_are_trimmed_where_the_template_trims_them(
    family: tuple[str, bool], answer: str
) -> None:
    text, end = CODECS[family], FAMILIES[family[0]][1]
    given = text.tokenizer.decode(text.encode_response(answer, template="chat"))
    kept = answer.strip() if family[0] in TRIMS else answer
    kept = answer.strip("\n") if family[0] == "qwen3" else kept
    before, space = FAMILIES[family[0]][3], " " if family[0] == "llama-2" else ""
    assert given == f"{before}{kept}{space}{end}"
    assert text.decode(text.encode_response(answer, template="chat")) == "Sure"


@ANY
@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("template", ["chat", "alol", "plain", "eos", "verbatim"])
def test_an_answer_that_ends_with_an_end_token_gets_no_second_one(
    family: tuple[str, bool], times: int, template: Any
) -> None:
    text, end = CODECS[family], FAMILIES[family[0]][1]
    right = text.encode_response("Sure.", template=template)
    for token in (end, "</s>"):
        for blank in ("", " ", "\n"):
            answer = "Sure." + f"{blank}{token}" * times + blank
            ids = text.encode_response(answer, template=template)
            assert text.decode(ids) == "Sure."
            if not blank:
                assert ids == right
    assert len(text.encode_response(end, template=template)) == 1  # nothing but an end is empty


@ANY
def test_a_turn_of_the_prompt_is_ended_once_too(family: tuple[str, bool]) -> None:
    text, end = CODECS[family], FAMILIES[family[0]][1]
    turns = (Turn("user", "Why?"), Turn("assistant", "So."), Turn("user", "Oh?"))
    ended = (turns[0], Turn("assistant", "So." + end), turns[2])
    for template in ("chat", "eos"):
        assert text.encode_prompt(ended, template=template) == text.encode_prompt(
            turns, template=template
        )


@ANY
def test_an_empty_answer_is_the_templates_end_alone(family: tuple[str, bool]) -> None:
    text, end = CODECS[family], FAMILIES[family[0]][1]
    assert text.encode_response(" ", template="chat") == [text.tokenizer.convert_tokens_to_ids(end)]


def test_without_an_end_token_of_its_own_the_template_gets_the_tokenizers() -> None:
    for template, ending in (
        ("{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}", ""),
        ("{% for m in messages %}{{ m.role + ': ' + m.content + '<END>\n' }}{% endfor %}", "<END>"),
    ):
        text = TextCodec(tiny_tokenizer("llama"), is_encoder_decoder=False)
        text.tokenizer.chat_template = (
            template + "{% if add_generation_prompt %}assistant:{% endif %}"
        )
        ids = text.encode_response("Sure.", template="chat")
        assert ids == [*text.encode_text(f" Sure.{ending}", begin=False), text.end_id]
        assert text.decode(ids) == "Sure."


@ANY
def test_responses_of_data_end_as_the_template_does_or_not_at_all(family: tuple[str, bool]) -> None:
    text = CODECS[family]
    whole = text.encode_response("Sure.", template="chat")
    for append_eos, right in ((True, whole), (False, whole[:-1])):
        limits = TextLimits("chat", None, 100, append_eos=append_eos)
        assert SplitEncoder(text, limits).response("Sure.", DropReport()) == right


def test_generation_ends_at_the_templates_end_token_too() -> None:
    policy = LanguagePolicy.from_pretrained("tiny-random-llama")
    policy.text.tokenizer.add_special_tokens({"additional_special_tokens": ["<end_of_turn>"]})
    policy.text.tokenizer.chat_template = FAMILIES["gemma"][0]
    end = policy.text.tokenizer.convert_tokens_to_ids("<end_of_turn>")
    assert {end, policy.text.end_id} <= policy.generation_vocabulary().end_ids
