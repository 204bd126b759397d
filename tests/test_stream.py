"""The load client against the ground-truth server: times, tokens and classes as its log says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import loadmock
from leadline import measure, workload
from leadline.config import Measure
from leadline.records import BlockResult, Level, Outcome

SETTINGS = Measure(idle_timeout_s=0.5, level_limit_s=20)

pytestmark = pytest.mark.skipif(loadmock.COMPILER is None, reason="the ground-truth server needs a C compiler")


@pytest.fixture(scope="module")
def mock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[loadmock.Mock]:
    server = loadmock.Mock(loadmock.build(tmp_path_factory.mktemp("mock")))
    yield server
    server.close()


def play(
    mock: loadmock.Mock, concurrency: int, count: int, *, max_tokens: int = 20, settings: Measure = SETTINGS, **options: object
) -> BlockResult:
    prompts = workload.blocks("chat", seed=1, block=0, count=count, max_tokens=max_tokens)
    level = Level(workload="chat", concurrency=concurrency)
    return measure.play(mock.url, level, prompts, block=0, model="mock", settings=settings, options=measure.Options(**options))  # type: ignore[arg-type]


@pytest.mark.parametrize("k", ["1", "2", "3", "4", "5", "6", "7", "8", "1,5,2,8,1,3"])
def test_tokens_are_the_servers_whatever_a_chunk_holds(mock: loadmock.Mock, tmp_path: Path, k: str) -> None:
    mock.set(k=k)
    result = play(mock, 4, 8)
    truth = mock.truth(tmp_path)
    assert [r.outcome for r in result.requests] == [Outcome.OK] * 8
    assert [r.tokens_out for r in result.requests] == [t.tokens for t in truth] == [20] * 8
    assert [r.events for r in result.requests] == [len(t.chunk_ns) for t in truth]
    assert {r.token_source for r in result.requests} == {"usage"}
    assert result.output_tok_s == pytest.approx(160 / result.duration_s)


def test_times_follow_the_servers_own(mock: loadmock.Mock, tmp_path: Path) -> None:
    mock.set(ttft=20000, itl=4000)
    result = play(mock, 1, 2)
    truth = mock.truth(tmp_path)
    assert result.client.clock == "kernel"
    for request, true in zip(result.requests, truth, strict=True):
        assert request.ttft_ms is not None
        assert request.e2e_ms is not None
        assert request.ttft_ms >= 20.0
        # the kernel's stamp is taken when the packet comes, the log's just before it is sent: what lies between is the server's send
        gaps = [(b - a) / 1e6 for a, b in zip(true.chunk_ns, true.chunk_ns[1:], strict=False)]
        assert request.e2e_ms - request.ttft_ms == pytest.approx(sum(gaps), abs=5.0)
        assert len(request.step_gap_ms) == len(gaps)
