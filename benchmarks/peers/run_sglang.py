"""``sglang.bench_serving`` from the wheel: ``python run_sglang.py --backend sglang-oai-chat ...`` (see README.md)."""

from __future__ import annotations

import stubs

stubs.install(["sglang", "torch"], ["sglang.benchmark"], ["sglang"])


def resolve_base_url(base_url: str | None, host: str, port: int, *args: object, **kwargs: object) -> str:
    return base_url or f"http://{host}:{port}"


def resolve_host_port(base_url: str | None, host: str, port: int, *args: object, **kwargs: object) -> tuple[str, int]:
    return host, port


def get_tokenizer(name: str, *args: object, **kwargs: object) -> object:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(name)


stubs.stub("sglang.srt.utils.hf_transformers_utils", get_tokenizer=get_tokenizer)
stubs.stub("sglang.srt.disaggregation.utils", FAKE_BOOTSTRAP_HOST="2.2.2.2")
stubs.stub("sglang.srt.utils.network", resolve_base_url=resolve_base_url, resolve_host_port=resolve_host_port)

from sglang.benchmark.serving import cli_main  # noqa: E402

cli_main()
