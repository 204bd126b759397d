"""``vllm bench serve`` from the wheel: ``python run_vllm.py --base-url ... --dataset-name custom ...`` (see README.md)."""

from __future__ import annotations

import argparse
import asyncio
import gc

import stubs

stubs.install(["vllm", "torch"], ["vllm.benchmarks.serve", "vllm.benchmarks.lib", "vllm.benchmarks.datasets"], ["vllm", "vllm.benchmarks"])


def get_tokenizer(name: str, *args: object, **kwargs: object) -> object:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(name)


def join_host_port(host: str, port: int) -> str:
    return f"{host}:{port}"


def logger(name: str) -> object:
    import logging

    return logging.getLogger(name)


def freeze() -> None:
    gc.collect()
    gc.freeze()


stubs.stub("vllm.tokenizers", get_tokenizer=get_tokenizer)
stubs.stub("vllm.utils.argparse_utils", FlexibleArgumentParser=argparse.ArgumentParser)
stubs.stub("vllm.utils.gc_utils", freeze_gc_heap=freeze)
stubs.stub("vllm.utils.network_utils", join_host_port=join_host_port)
stubs.stub("vllm.utils.mistral", is_mistral_tokenizer=lambda tokenizer: False)
stubs.stub("vllm.logger", init_logger=logger)

from vllm.benchmarks.serve import add_cli_args, main_async  # noqa: E402

parser = argparse.ArgumentParser()
add_cli_args(parser)
asyncio.run(main_async(parser.parse_args()))
