"""One process has the models, others score, generate and let them learn: Lamorel's uses."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Barrier, Thread
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from llm_agents.errors import UserError
from llm_agents.policies import LanguagePolicy, LoraConfig
from llm_agents.policies.state_mlp import StateMLP
from llm_agents.rollouts.policy_server import PolicyClient, PolicyServer
from llm_agents.types import Choice, GenerationConfig, TokenBatch
from tests.rollouts.policy_clients import play

MakePolicy = Callable[..., LanguagePolicy]
LORA = LoraConfig(r=4, alpha=8, targets="all-linear")
CHOICES = [
    Choice("You see a wall. You should", ("turn left", "go forward")),
    Choice("You see a ball. You should", ("pick it up", "turn left", "wait")),
    Choice("You see a door. You should", ("open it",)),
]


@contextmanager
def serving(server: PolicyServer) -> Iterator[PolicyClient]:
    """Serve in a thread; give a client and close it at the end."""
    client = server.client()
    thread = Thread(target=server.serve)
    thread.start()
    try:
        yield client
    finally:
        client.close()
        thread.join()


def step(
    policy: LanguagePolicy,
    choices: Sequence[Choice],
    index: Sequence[int],
    rewards: Sequence[float],
) -> dict[str, float]:
    """Take a step of policy gradient."""
    own = [p for _, p in policy.trainable_parameters()]
    optimizer = torch.optim.SGD(own, lr=0.5)
    log_probs = policy.score_actions(choices, "token").log_probs()
    taken = log_probs[torch.arange(len(index)), torch.tensor(index)]
    loss = -(taken * torch.tensor(rewards)).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return {"loss": float(loss.detach())}


def test_scores_are_those_of_the_model(make_policy: MakePolicy) -> None:
    policy = make_policy("llama", lora=LORA, weights=0.2)
    with torch.no_grad():
        expected = policy.score_actions(CHOICES, "sum").scores
    with serving(PolicyServer(policy)) as client:
        found = client.score(CHOICES)
    assert [len(row) for row in found] == [2, 3, 1]
    for row, own in enumerate(found):
        torch.testing.assert_close(own, expected[row, : len(own)])


def test_what_waits_together_is_scored_in_one_pass(make_policy: MakePolicy) -> None:
    policy = make_policy("llama")
    server = PolicyServer(policy)
    clients = [server.client() for _ in range(3)]
    found: dict[int, list[Tensor]] = {}
    together = Barrier(3)

    def ask(number: int) -> None:
        together.wait()
        found[number] = clients[number].score([CHOICES[number], CHOICES[0]])
        clients[number].close()

    threads = [Thread(target=ask, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive() and not all(c.poll() for c in server._own):
            pass  # until all three have asked
    server.serve()
    for thread in threads:
        thread.join()
    assert policy.memory_statistics().computed == 3, "each choice once, whoever asks"
    with torch.no_grad():
        expected = [policy.score_actions([choice], "sum").scores[0] for choice in CHOICES]
    for number in range(3):
        torch.testing.assert_close(found[number][0], expected[number])
        torch.testing.assert_close(found[number][1], expected[0])


def test_generated_text_scores_as_it_was_drawn(make_policy: MakePolicy) -> None:
    policy = make_policy("gpt2")
    config = GenerationConfig(max_new_tokens=4, temperature=1.0)
    with serving(PolicyServer(policy)) as client:
        first = client.generate(["You see a wall.", "A ball."], config, seed=1)
        again = client.generate(["You see a wall.", "A ball."], config, seed=1)
        other = client.generate(["You see a wall.", "A ball."], config, seed=2)
    assert first == again != other, "clients with seeds of their own draw their own samples"


@pytest.mark.parametrize("family", ["gpt2", "t5"])
def test_log_probs_of_greedy_text_are_those_of_scoring(
    make_policy: MakePolicy, family: str
) -> None:
    policy = make_policy(family).eval()
    prompt = policy.encode_text("You see a wall.", begin=True)
    (ids,) = policy.generate([prompt], GenerationConfig(max_new_tokens=6))
    ids = [token for token in ids if token != policy.text.end_id]
    model, device = policy.causal_model, policy.device
    drawn, so_far = 0.0, []
    with torch.no_grad():
        for token in ids:  # step by step, as it was generated
            if policy.is_encoder_decoder:
                start = int(model.config.decoder_start_token_id)
                output = model(
                    input_ids=torch.tensor([prompt], device=device),
                    decoder_input_ids=torch.tensor([[start, *so_far]], device=device),
                )
            else:
                output = model(input_ids=torch.tensor([[*prompt, *so_far]], device=device))
            drawn += float(output.logits[0, -1].log_softmax(-1)[token])
            so_far.append(token)
    batch = TokenBatch(
        prompt_ids=torch.tensor([prompt]),
        prompt_mask=torch.ones(1, len(prompt), dtype=torch.bool),
        response_ids=torch.tensor([ids]),
        response_mask=torch.ones(1, len(ids), dtype=torch.bool),
        rows=torch.zeros(1, dtype=torch.int64),
    )
    with torch.no_grad():
        scored = float(policy.sequence_log_probs(batch))
    assert scored == pytest.approx(drawn, abs=1e-3)


def test_an_update_is_seen_by_the_next_score(make_policy: MakePolicy) -> None:
    policy = make_policy("llama", lora=LORA, weights=0.2)
    with serving(PolicyServer(policy, {"update": step})) as client:
        before = client.score(CHOICES[:1], "token")[0].log_softmax(0)
        losses = client.call("update", CHOICES[:1], [1], [1.0])
        after = client.score(CHOICES[:1], "token")[0].log_softmax(0)
    assert losses["loss"] == pytest.approx(-float(before[1]), abs=1e-4)
    assert float(after[1]) > float(before[1])


def test_several_policies_are_told_apart(make_policy: MakePolicy) -> None:
    actor, other = make_policy("llama", lora=LORA, weights=0.2), make_policy("gpt2")
    server = PolicyServer({"actor": actor, "other": other}, {"update": step})
    with serving(server) as client:
        first = client.score(CHOICES, policy="other")
        acted = client.score(CHOICES, policy="actor")
        client.call("update", CHOICES[:1], [0], [1.0], policy="actor")
        again = client.score(CHOICES, policy="other")
        changed = client.score(CHOICES, policy="actor")
        with pytest.raises(UserError, match="expected a policy of actor, other, got 'policy'"):
            client.score(CHOICES)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(acted[0], changed[0])
    assert not torch.allclose(acted[0], first[0])


def test_servers_share_no_functions(make_policy: MakePolicy) -> None:
    policy, given = make_policy("llama"), {"update": step}
    for functions, own in ((given, ["update"]), (None, [])):
        first = PolicyServer(policy, functions)
        first.functions["head"] = step
        assert list(PolicyServer(policy, functions).functions) == own
    assert list(given) == ["update"]


def test_a_head_of_ones_own_learns_alone(make_policy: MakePolicy) -> None:
    policy = make_policy("llama")
    head = nn.Linear(policy.hidden_size, 2)
    optimizer = torch.optim.Adam(head.parameters(), lr=0.1)
    targets = torch.tensor([0, 1, 1])

    def classify(policy: LanguagePolicy, choices: Sequence[Choice]) -> list[list[float]]:
        with torch.no_grad():
            return head(policy.score_actions(choices, "sum").prompt_states).softmax(-1).tolist()

    def learn(policy: LanguagePolicy, choices: Sequence[Choice]) -> float:
        with torch.no_grad():
            states = policy.score_actions(choices, "sum").prompt_states
        loss = nn.functional.cross_entropy(head(states), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    with serving(PolicyServer(policy, {"classify": classify, "learn": learn})) as client:
        for _ in range(100):
            client.call("learn", CHOICES)
        found = torch.tensor(client.call("classify", CHOICES))
    assert float((found[torch.arange(3), targets] - 1).abs().max()) < 0.005


def test_a_value_and_an_action_head_read_one_state(make_policy: MakePolicy) -> None:
    policy = make_policy("t5")
    value, action = StateMLP(policy.hidden_size, 1, (8,)), StateMLP(policy.hidden_size, 3, (8,))

    def heads(policy: LanguagePolicy, choices: Sequence[Choice]) -> list[Any]:
        states = policy.score_actions(choices, "sum").prompt_states
        return [value(states).tolist(), action(states).tolist()]

    with serving(PolicyServer(policy, {"heads": heads})) as client:
        values, actions = client.call("heads", CHOICES)
    assert len(values) == 3
    assert [len(row) for row in actions] == [3, 3, 3]


def test_faults_reach_whoever_asked_and_the_server_goes_on(make_policy: MakePolicy) -> None:
    with serving(PolicyServer(make_policy("llama"))) as client:
        with pytest.raises(UserError, match="expected a function of none, got 'update'"):
            client.call("update")
        with pytest.raises(RuntimeError, match="ValueError: expected actions to score"):
            client.score([Choice("The end", ())])
        assert len(client.score(CHOICES)) == 3


@pytest.mark.slow
def test_processes_share_one_model(make_policy: MakePolicy) -> None:
    policy = make_policy("llama", lora=LORA, weights=0.1)
    before = {n: p.detach().clone() for n, p in policy.trainable_parameters()}
    server = PolicyServer(policy, {"update": step})
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    processes = [
        context.Process(target=play, args=(server.client(), seed, 6, results)) for seed in range(2)
    ]
    for process in processes:
        process.start()
    server.handed_over()
    server.serve()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    assert {results.get()[0] for _ in range(2)} == {0, 1}
    assert any(not torch.equal(p, before[n]) for n, p in policy.trainable_parameters())
