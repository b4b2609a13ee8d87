"""Random numbers: stateless, independent of the other rows, uniform and normal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st

import classwise as cw
from classwise.core.compute.rng import CounterRNG, generators_restored, seed_generators

from ..pretend_cuda import PretendCuda

INDEX = torch.arange(4000)


def test_uniform_numbers_pass_a_kolmogorov_test() -> None:
    values = CounterRNG(0, "test").uniform(INDEX, (5,)).flatten()
    assert 0 <= float(values.min()) <= float(values.max()) < 1
    assert scipy.stats.kstest(values.numpy(), "uniform").pvalue > 1e-3


def test_normal_numbers_pass_a_kolmogorov_test() -> None:
    assert scipy.stats.kstest(CounterRNG(1, "test").normal(INDEX, (5,)).flatten().numpy(), "norm").pvalue > 1e-3


def test_integers_are_equally_frequent() -> None:
    counts = torch.bincount(CounterRNG(2, "test").integers(INDEX, (5,), 7).flatten(), minlength=7)
    assert scipy.stats.chisquare(counts.numpy()).pvalue > 1e-3


def test_neighbouring_numbers_are_uncorrelated() -> None:
    uniform = CounterRNG(3, "test")
    plain = uniform.uniform(INDEX)
    others = {
        "next image": uniform.uniform(INDEX + 1),
        "next counter": uniform.uniform(INDEX, counter=1),
        "next epoch": uniform.at(1).uniform(INDEX),
        "other purpose": uniform.child("more").uniform(INDEX),
        "next seed": CounterRNG(4, "test").uniform(INDEX),
        "next element": uniform.uniform(INDEX, (2,))[:, 1],
    }
    for name, other in others.items():
        correlation = float(torch.corrcoef(torch.stack([plain, other]))[0, 1])
        assert abs(correlation) < 0.06, name


@given(seed=st.integers(0, 2**40), start=st.integers(0, 10**9), counter=st.integers(0, 10**6))
def test_a_row_does_not_depend_on_the_other_rows(seed: int, start: int, counter: int) -> None:
    index = torch.arange(start, start + 9)
    uniform = CounterRNG(seed, "rows")
    for draw in (uniform.uniform, uniform.normal):
        whole = draw(index, (3, 5), counter)
        for row in (0, 8):
            assert torch.equal(draw(index[row : row + 1], (3, 5), counter)[0], whole[row])
        assert torch.equal(draw(index.flip(0), (3, 5), counter).flip(0), whole)


@pytest.mark.parametrize("counter", [0, 1, 7, 10**6, 2**40 + 3])
def test_a_counter_as_an_int_and_as_a_tensor_give_the_same_numbers(counter: int) -> None:
    rows = torch.full_like(INDEX, counter)
    assert torch.equal(CounterRNG(3).uniform(INDEX, counter=counter), CounterRNG(3).uniform(INDEX, counter=rows))


def test_a_counter_may_differ_between_rows() -> None:
    uniform, index = CounterRNG(5), torch.arange(4)
    mixed = uniform.uniform(index, (2,), counter=torch.tensor([0, 7, 0, 7]))
    assert torch.equal(mixed[0], uniform.uniform(index, (2,))[0])
    assert torch.equal(mixed[1], uniform.uniform(index, (2,), counter=7)[1])


def test_the_first_numbers_are_unchanged() -> None:
    """A change here would silently change every published run."""
    values = CounterRNG(0, "pinned", 3).uniform(torch.tensor([0, 1]), (2,), counter=1)
    assert values.flatten().tolist() == pytest.approx(PINNED, abs=0)


PINNED = [0.6081657409667969, 0.5576743483543396, 0.5580504536628723, 0.4107704162597656]


def test_a_permutation_has_every_number_once_and_differs_between_epochs() -> None:
    first, second = CounterRNG(0, "order").permutation(1000), CounterRNG(0, "order").at(1).permutation(1000)
    assert torch.equal(first.sort().values, torch.arange(1000))
    assert not torch.equal(first, second)
    assert int((first == torch.arange(1000)).sum()) < 8  # one is expected


def states() -> list[torch.Tensor]:
    return [torch.get_rng_state(), torch.cuda.get_rng_state()]


def trained(folder: Path) -> None:
    small = {"data.subset": 40, "model.name": "lenet", "data.validation": 0, "selection": "last", "attack.steps": 1}
    cw.train("at", data="digits", out=folder, overrides=small, epochs=1, device="cuda")


def seeded(folder: Path) -> None:
    device = torch.device("cuda")
    with generators_restored(device):
        seed_generators(3, device)
        torch.rand(())


@pytest.mark.parametrize("call", [seeded, trained])
def test_the_generators_of_the_device_are_restored(call: Callable[[Path], None], tmp_path: Path) -> None:
    with PretendCuda(), torch.random.fork_rng(devices=[]):
        seed_generators(1, torch.device("cuda"))
        before = states()
        call(tmp_path / "run")
        for state, now in zip(before, states(), strict=True):
            assert torch.equal(state, now)
        seed_generators(3, torch.device("cuda"))
        assert not any(torch.equal(state, now) for state, now in zip(before, states(), strict=True))


def test_generators_are_restored_and_seeded_with_the_device_in_use() -> None:
    """`torch.random.fork_rng` and `torch.manual_seed` with other devices are used at no other place."""
    files = Path(cw.__file__).parent.rglob("*.py")
    users = [file.name for file in files for name in ("fork_rng(", "manual_seed(") if name in file.read_text("utf-8")]
    assert users == ["rng.py", "rng.py"]
