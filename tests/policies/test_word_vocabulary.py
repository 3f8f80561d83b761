"""Numbers for words, and the two small networks that read with them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from llm_agents.errors import UserError
from llm_agents.policies.babyai_symbolic import BabyAISymbolic, Eyes, Norm
from llm_agents.policies.drrn import DRRNetwork
from llm_agents.policies.word_vocabulary import WORDS_AND_MARKS, WordVocabulary
from llm_agents.types import Choice
from tests.closeness import assert_rounding

LIST = ("turn left", "go forward", "toggle")


def test_words_get_numbers_from_one_in_the_order_in_which_they_come() -> None:
    words = WordVocabulary(10)
    assert words.encode("Go to the RED ball, then 2 go!") == (1, 2, 3, 4, 5, 6, 1)
    assert words.words == ("go", "to", "the", "red", "ball", "then")
    with_marks = WordVocabulary(10, WORDS_AND_MARKS)
    assert with_marks.encode("à 2 pas, à gauche") == (1, 2, 3, 4, 1, 5)


def test_a_frozen_vocabulary_learns_no_more() -> None:
    words = WordVocabulary(4)
    words.encode("the ball")
    words.is_frozen = True
    assert words.encode("the red ball") == (1, 0, 2)
    assert words.words == ("the", "ball")


def test_a_full_vocabulary_says_so() -> None:
    words = WordVocabulary(3)
    words.encode("one two")
    with pytest.raises(UserError, match="more than 2 different words, 'three'"):
        words.encode("three")
    with pytest.raises(UserError, match="at most 2 different words, got 3"):
        WordVocabulary(3).restore(["a", "b", "c"])
    with pytest.raises(ValueError, match="at least 2"):
        WordVocabulary(1)


# --- DRRN


def test_drrn_has_as_many_parameters_as_released() -> None:
    assert sum(p.numel() for p in DRRNetwork().parameters()) == 1_255_169


def small() -> DRRNetwork:
    torch.manual_seed(0)
    return DRRNetwork(200, 8, 6)


def test_values_are_those_of_each_pair_read_alone() -> None:
    network = small()
    choices = [Choice("You see a wall", LIST), Choice("A ball", LIST[:2]), Choice("", ("wait",))]
    states, actions = zip(*map(network.encode, choices), strict=True)
    found = network(states, actions)
    assert found.shape == (3, 3)
    for row, choice in enumerate(choices):
        for place, action in enumerate(choice.actions):
            torch.testing.assert_close(found[row, place], plain(network, choice.prompt, action))
        assert bool((found[row, len(choice.actions) :] == -torch.inf).all())


def plain(network: DRRNetwork, prompt: str, action: str) -> Tensor:
    """Return Q of one pair by single steps of the readers."""
    last = []
    for reader, text in ((network.state_reader, prompt), (network.action_reader, action)):
        ids = network.vocabulary.encode(text) or (0,)
        last.append(reader(network.embedding(torch.tensor([ids])))[0][0, -1])
    q: Tensor = network.output(network.hidden(torch.cat(last)).relu())
    return q[0]


def test_drrn_asks_for_actions_and_for_a_sensible_vocabulary() -> None:
    with pytest.raises(ValueError, match="at least one action"):
        small()([b""], [()])
    with pytest.raises(UserError, match="vocabulary_size"):
        DRRNetwork(2**17)


@pytest.mark.parametrize("make", [small, lambda: BabyAISymbolic(features=8)])
def test_the_words_go_where_the_weights_go(make: object) -> None:
    network, other = make(), make()  # type: ignore[operator]
    network.vocabulary.encode("the red ball")
    other.vocabulary.encode("ball red")
    other.load_state_dict(network.state_dict())
    assert other.vocabulary.words == ("the", "red", "ball")
    assert other.vocabulary.encode("ball") == (3,)


# --- BabyAI's network


def test_the_symbolic_network_has_as_many_parameters_as_released() -> None:
    for norm in ("batch", "group"):
        assert sum(p.numel() for p in BabyAISymbolic(norm=norm).parameters()) == 1_068_103  # type: ignore[arg-type]
    with pytest.raises(UserError, match="batch or group"):
        BabyAISymbolic(norm="layer")  # type: ignore[arg-type]


def images(count: int) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, 9, (count, 7, 7, 3), generator=generator, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("eyes", "norm"), [("film", "batch"), ("film", "group"), ("plain", "batch")]
)
def test_each_situation_is_seen_by_itself(eyes: Eyes, norm: Norm) -> None:
    torch.manual_seed(0)
    network = BabyAISymbolic(features=32, eyes=eyes, norm=norm).eval()
    missions = ["go to the ball", "pick up a key", "go to the ball"]
    memory = torch.randn(3, network.memory_size)
    together = network(images(3), missions, memory)
    for row in range(3):
        part = slice(row, row + 1)
        alone = network(images(3)[part], missions[part], memory[part])
        for first, second in zip(alone, together, strict=True):
            assert_rounding(first[0], second[row])
    torch.testing.assert_close(together.log_probs.exp().sum(-1), torch.ones(3))


def test_one_hot_cells_have_no_order() -> None:
    torch.manual_seed(0)
    network = BabyAISymbolic(features=8, encoding="one_hot", norm="group")
    cells = torch.stack([images(2)[..., n] % count for n, count in enumerate((11, 6, 3))], -1)
    zeros = torch.zeros(2, network.memory_size)
    expected = network(cells, ["go"] * 2, zeros).log_probs
    turned = cells.clone()
    turned[..., 1] = (cells[..., 1] + 1) % 6  # another numbering of the colours
    with torch.no_grad():
        weight = network.eyes.stem[0].weight
        weight[:, 11:17] = weight[:, 11:17].roll(1, 1)
    torch.testing.assert_close(network(turned, ["go"] * 2, zeros).log_probs, expected)
    with pytest.raises(UserError, match="film or plain"):
        BabyAISymbolic(eyes="big")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="numbers or one_hot"):
        BabyAISymbolic(encoding="letters")  # type: ignore[arg-type]


@pytest.mark.parametrize("eyes", ["film", "plain"])
def test_mission_image_and_memory_all_count(eyes: Eyes) -> None:
    torch.manual_seed(0)
    network = BabyAISymbolic(features=32, eyes=eyes, norm="group")
    zeros = torch.zeros(1, network.memory_size)
    first = network(images(1), ["go to the ball"], zeros)
    others = [
        network(images(1), ["go to the key"], zeros),
        network(images(1) + 1, ["go to the ball"], zeros),
        network(images(1), ["go to the ball"], first.memory),
    ]
    for other in others:
        assert not torch.allclose(first.log_probs, other.log_probs)


def test_linear_layers_begin_with_rows_of_length_one() -> None:
    network = BabyAISymbolic(features=8)
    linear = [m for m in network.modules() if isinstance(m, nn.Linear)]
    assert len(linear) == 8
    for layer in linear:
        torch.testing.assert_close(layer.weight.norm(dim=1), torch.ones(layer.out_features))
        assert bool((layer.bias == 0).all())
