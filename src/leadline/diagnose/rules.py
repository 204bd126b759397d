"""The table of failure rules: what an exception or a line means, as data.

A rule states structure: the exception's type, the start of its message, the frames it came through, and the stage of life
it may happen in.  A message alone never decides where the same words occur in healthy logs.  The first rule that holds wins, so
narrow rules stand above broad ones.  ``cls`` ``"memory.gpu_oom"`` is completed with the stage (startup or runtime).

Wording differs between versions; the alternatives inside one pattern are those wordings.
"""

from __future__ import annotations

import functools
import re

from ..records import Record


class Rule(Record, frozen=True):
    id: str
    cls: str
    summary: str
    remedy: str = ""
    confirm: str = ""
    doomed: bool | None = None
    type: str = ""
    """Pattern on the exception's short type; empty = any."""
    message: str = ""
    """Pattern on the message with its continuation lines (for a flat rule: on the line)."""
    frames: str = ""
    """Pattern that some frame ``file:function`` must match; empty = any."""
    before: int = 99
    """Holds only while the furthest stage reached is below this one."""
    since: int = 0
    unless_frames: str = ""
    """Pattern that no frame may match."""
    known: bool = True
    """False: the class is clear and the cause behind it is not (the text says so)."""
    fallout: bool = False
    """The line is a consequence: it never decides while anything else does."""


def _rule(
    id: str,  # noqa: A002
    cls: str,
    summary: str,
    message: str = "",
    remedy: str = "",
    *,
    type: str = "",  # noqa: A002
    frames: str = "",
    before: int = 99,
    since: int = 0,
    unless_frames: str = "",
    known: bool = True,
    doomed: bool | None = None,
    confirm: str = "",
    fallout: bool = False,
) -> Rule:
    return Rule(
        id=id, cls=cls, summary=summary, message=message, remedy=remedy, type=type, frames=frames, before=before, since=since, unless_frames=unless_frames, known=known,
        doomed=doomed, confirm=confirm, fallout=fallout,
    )  # fmt: skip


_CONFIG_FILES = r"server_args\.py|arg_utils\.py|/config/[\w/]+\.py|config\.py:|argparse|cli_args|\butils/argparse|validate_[\w]*args|check_server_args|create_engine_config|__post_init__"
_LOADER = r"load_weights|load_model|model_loader|weight_utils|loader\.py|get_model|initialize_model|safetensors|init_lm_head|set_embed|from_pretrained|hf_utils|transformers_utils|get_config|modelscope"

# -- what needs no look at the arguments or the model: memory, devices, host -------------------------------------------

EXCEPTIONS: tuple[Rule, ...] = (
    # consequences first: they are never the cause while another failure stands in the text
    _rule(
        "fallout.engine_dead",
        "engine.internal_error",
        "the engine died; the line is a consequence",
        r"EngineCore encountered an issue|Engine core initialization failed|Engine process failed to start|See (?:stack trace|root cause)|Engine loop is not running|Background loop has errored|MQEngine|WorkerProc initialization failed due to an exception in a background|^cancelled$",
        type=r".*",
        fallout=True,
    ),
    _rule(
        "fallout.engine_dead_type",
        "engine.internal_error",
        "the engine died; the line is a consequence",
        type=r"EngineDeadError|AsyncEngineDeadError|MQEngineDeadError",
        fallout=True,
    ),
    _rule(
        "fallout.launcher",
        "engine.internal_error",
        "the launcher noticed that the server had gone",
        r"[Ss]erver process exited|[Ss]erver (?:failed to start|exited unexpectedly|process crashed)|process exited with code",
        fallout=True,
    ),
    _rule(
        "fallout.peer_gone",
        "engine.internal_error",
        "another process of the engine went away first",
        r"Connection closed by peer|Connection reset by peer|Broken pipe|Socket closed|Stop_waiting response is expected|failed to recv, got 0 bytes|NCCL communicator was aborted|remote process exited|Cannot connect to host|Connection refused|Rank \d+ (?:scheduler )?(?:is dead|died)",
        fallout=True,
    ),
    _rule(
        "fallout.pipe",
        "engine.internal_error",
        "another process of the engine went away first",
        type=r"^(?:EOFError|BrokenPipeError|ConnectionResetError|ConnectionRefusedError|CancelledError|KeyboardInterrupt|SystemExit|ClientConnectorError|RemoteDisconnected)$",
        fallout=True,
    ),
    # network
    _rule(
        "network.bind",
        "network.port_in_use",
        "a port the server needs is taken by another process",
        r"[Aa]ddress already in use|EADDRINUSE|[Pp]ort (?:\d+ )?(?:is )?already (?:in use|allocated)|is not available in \d+ seconds|(?:port|Port)\b.{0,60}\bis (?:occupied|not available|in use)|failed to bind to|Only one usage of each socket address",
        "find the owner with `ss -ltnp`, end it (often the previous instance) or choose another --port",
        doomed=True,
        confirm="`ss -ltnp` names the process that listens",
    ),
    _rule(
        "network.bind_errno",
        "network.port_in_use",
        "a port the server needs is taken by another process",
        r"\[Errno 98\]|errno: 98\b|error code 98",
        "find the owner with `ss -ltnp`, end it or choose another --port",
        doomed=True,
    ),
    _rule(
        "network.proxy_type",
        "network.proxy_intercepts_self_check",
        "the server's request to itself went through a proxy",
        type=r"ProxyError",
        remedy="exempt loopback: NO_PROXY=127.0.0.1,localhost in the service's environment (or unset http_proxy and https_proxy)",
        doomed=True,
    ),
    _rule(
        "network.proxy_warmup",
        "network.proxy_intercepts_self_check",
        "the warm-up request of the server to itself was answered by something else, typically a proxy",
        r"<Response \[(?:407|502|504|403|500|503|404)\]>|\b(?:502|504|407)\b.*(?:Bad Gateway|Gateway|Proxy)|Tunnel connection failed|squid|Unable to connect to proxy",
        "exempt loopback: NO_PROXY=127.0.0.1,localhost,0.0.0.0 in the service's environment (or unset http_proxy and https_proxy)",
        frames=r"warmup|http_server|launch_server|/server\.py|requests/|urllib3",
        doomed=True,
        confirm="the environment of the service has http_proxy or https_proxy, and the server's own access log does not show the request",
    ),
    # shared memory of the host
    _rule(
        "host.shm_full",
        "host.shared_memory_exhausted",
        "/dev/shm is full or too small",
        r"(?:/dev/shm|shm_open|shared memory segment|posix_fallocate|psm_\w+|torch_\d+_|/nccl-|insufficient shared memory|shared memory object).{0,200}(?:No space left|Cannot allocate|insufficient|failed)|No space left on device.{0,120}(?:/dev/shm|psm_|shm|nccl-)|insufficient shared memory|unable to (?:open|mmap|allocate|resize).{0,40}shared memory|unable to mmap \d+ bytes from file </torch_|unable to write to file </torch_",
        "give it more: `--shm-size=16g` (or `--ipc=host`) for a container, remount /dev/shm larger on a host, and remove leftovers `psm_*`, `nccl-*`, `torch_*`",
        doomed=True,
        confirm="`df -h /dev/shm`",
    ),
    _rule(
        "host.shm_frames",
        "host.shared_memory_exhausted",
        "/dev/shm is full or too small",
        r"No space left on device|Cannot allocate memory|Bus error",
        "give it more: `--shm-size=16g` (or `--ipc=host`) for a container, remount /dev/shm larger on a host",
        frames=r"shared_memory|shm_broadcast|reductions\.py|multiprocessing/heap|shm_",
        doomed=True,
        confirm="`df -h /dev/shm`",
    ),
    _rule(
        "memory.node_monitor",
        "memory.host_oom_kill",
        "a memory monitor ended a process of the engine because the host ran out of memory",
        r"running low on memory|killed due to (?:memory pressure|the node running low)|memory pressure \(OOM\)",
        "give the host more memory, move the neighbour that fills it, or load with fewer processes at once",
    ),
    # memory of the GPU
    _rule(
        "gpu.held_free_memory",
        "gpu.memory_held_by_leftover",
        "GPU memory is already taken before the server loads anything, usually by a leftover of the previous run",
        r"Free memory on device.*less than desired GPU memory utilization|[Mm]emory capacity is unbalanced|memory (?:of|on) (?:the )?GPUs? .*(?:occupied|used) by other processes",
        "find the holder with `nvidia-smi --query-compute-apps=pid,used_memory --format=csv`, end it and start again; lowering the utilisation only hides it",
        doomed=None,
        confirm="`nvidia-smi` lists a process that does not belong to this start",
    ),
    _rule(
        "memory.profiling_moved",
        "gpu.memory_held_by_leftover",
        "another process's GPU memory changed while this server measured what is free",
        r"Error in memory profiling\. Initial free memory|Initial used memory .* currently used memory",
        "let nothing else start or stop on the GPU meanwhile, then start again",
        doomed=False,
    ),
    # pools
    _rule(
        "sglang.pool_reservation",
        "memory.kv_pool_too_small",
        "what is left for the KV and state caches after weights and reservations is nothing",
        r"^Not enough memory\. Please try to increase --mem-fraction-static|^Not enough memory; increase --mem-fraction-static|[Ll]oaded weights leave no GPU memory for the KV cache|^Not enough GPU memory for (?:hybrid|the)|state cache is too small to serve|max_running_request(?:s)? is zero|max_num_reqs.*(?:zero|<= 0)|max_total_num_tokens.*(?:is too small|<= 0)|KV cache pool (?:size )?is too small",
        doomed=True,
    ),
    _rule(
        "vllm.kv_none",
        "memory.kv_pool_too_small",
        "no memory is left for the KV cache after the weights",
        r"^No available memory for the cache blocks|available KV cache memory is (?:negative|zero)",
        "raise --gpu-memory-utilization (0.90 -> 0.95), or free memory: smaller --max-num-seqs, fewer draft layers, --enforce-eager, a larger tensor parallel size",
        doomed=True,
    ),
    _rule(
        "vllm.kv_one_request",
        "memory.kv_pool_too_small",
        "the KV cache that fits is smaller than one request of the configured length needs",
        r"^To serve at least one request with|max seq len \(\d+\) is larger than the maximum number of tokens that can be stored in KV cache|KV cache is needed, which is larger than the available KV cache memory",
        doomed=True,
    ),
    _rule(
        "vllm.kv_asked",
        "memory.kv_pool_too_small",
        "more KV cache was asked for than there is memory",
        r"on kv cache allocation is less than requested|kv cache allocation .*less than|requested memory for kv|KV cache .*exceeds available",
        doomed=True,
    ),
    _rule(
        "vllm.state_blocks",
        "memory.kv_pool_too_small",
        "the state cache has fewer blocks than the configured number of sequences needs",
        r"max_num_seqs \(\d+\) exceeds available|exceeds (?:the )?available (?:Mamba|mamba|state) cache|[Ll]ower max_num_seqs|not enough (?:mamba|KV|kv) cache blocks",
        doomed=True,
    ),
    _rule(
        "trt.kv",
        "memory.gpu_oom_startup",
        "the executor could not be created for lack of GPU memory",
        r"insufficient GPU memory",
        "lower free_gpu_memory_fraction or max_tokens of the KV cache: more was requested than is free",
        doomed=True,
    ),
    # a Triton kernel that wants more on-chip memory than the GPU has is no memory shortage
    _rule(
        "triton.on_chip",
        "engine.internal_error",
        "a Triton kernel needs more on-chip memory than this GPU has; GPU memory is not short",
        r"out of resource: shared memory|OutOfResources",
        "use another attention or MoE backend, or a smaller block or draft depth",
        type=r"OutOfResources|RuntimeError|.*",
        frames="",
        doomed=True,
    ),
    _rule("gpu.oom", "memory.gpu_oom", "a GPU allocation failed", r"", type=r"^(?:OutOfMemoryError|CUDAOutOfMemoryError|GPUOutOfMemory)$"),
    _rule(
        "gpu.oom_text",
        "memory.gpu_oom",
        "a GPU allocation failed",
        r"^(?:Capture \w+ graph failed: )?(?:(?:CUDA|HIP|XPU|NPU|Triton) ?(?:Error)?[: ]*(?:\[CUDA\]: )?(?:error: )?out of memory)|CUDA error: out of memory|HIP error: out of memory|cudaErrorMemoryAllocation|CUDA_ERROR_OUT_OF_MEMORY|hipErrorOutOfMemory|Triton Error \[(?:CUDA|HIP)\]: out of memory|CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED|Cuda failure (?:\d+ )?'out of memory'|Failed to load model - not enough GPU memory|CUDA out of memory",
    ),
    # hardware, driver and kernels of the GPU
    _rule(
        "gpu.ecc",
        "gpu.hardware_fault",
        "the GPU reports an uncorrectable memory error",
        r"uncorrectable (?:ECC|NVLink) error|ECC error|double.bit|cudaErrorECCUncorrectable|GPU (?:is lost|has fallen off the bus)|cudaErrorNvlinkUncorrectable|device (?:was|is) lost|ErrorDeviceLost",
        "take this GPU out of service, read `nvidia-smi -q -d ECC,ROW_REMAPPER`, reset or replace it; settings cannot help",
        doomed=True,
        confirm="an Xid 48, 63, 64, 94 or 95 in the kernel log, or ECC counters in nvidia-smi",
    ),
    _rule(
        "gpu.driver",
        "gpu.driver_unavailable",
        "CUDA cannot be used on this host or in this container",
        r"no CUDA-capable device|No CUDA GPUs are available|Found no NVIDIA driver|[Dd]river/library version mismatch|CUDA driver version is insufficient|CUDA unknown error|CUDA (?:driver )?initialization (?:error|failed)|driver initialization failed|system not yet initialized|cudaErrorSystemNotReady|unsupported display driver|forward compatibility was attempted|Failed to initialize NVML|NVML_ERROR|NVML Shared Library Not Found|NVMLError|Unexpected error from cudaGetDeviceCount|Can't initialize NVML|CUDA_ERROR_(?:NO_DEVICE|SYSTEM_NOT_READY|SYSTEM_DRIVER_MISMATCH|NOT_INITIALIZED|COMPAT_NOT_SUPPORTED\w*)|Unable to determine the device handle|NVIDIA-SMI has failed|invalid device ordinal|all CUDA-capable devices are busy or unavailable|CUDA-capable device\(s\) is/are busy|No HIP GPUs are available|Failed to infer device type|No accelerator .* is available|Cannot access accelerator device|Insufficient permissions|No supported gpu|GPU access blocked",
        "check `nvidia-smi` in the same environment as the service: after a driver upgrade reboot (or reload the module), start nvidia-fabricmanager where NVSwitch is present, recreate a container that lost its devices",
        doomed=True,
        confirm="`nvidia-smi` fails in the same environment",
    ),
    _rule(
        "gpu.driver_type",
        "gpu.driver_unavailable",
        "CUDA cannot be used on this host or in this container",
        type=r"^NVMLError",
        remedy="check `nvidia-smi` in the same environment as the service; reboot after a driver upgrade",
        doomed=True,
    ),
    _rule(
        "build.no_kernel_image",
        "host.toolchain_missing",
        "an installed library was not built for this GPU",
        r"no kernel image is available|not compiled (?:with|for) (?:CUDA|sm_|SM)|unsupported (?:gpu )?architecture|is not defined for option 'gpu-name'|PTX was compiled with an unsupported toolchain|unsupported toolchain|Unsupported .*compute capability.*build|cudaErrorNoKernelImageForDevice|invalid device function",
        "install a build of the library for this GPU's compute capability, or another backend",
        doomed=True,
    ),
    _rule(
        "gpu.fault",
        "gpu.kernel_fault",
        "a GPU kernel failed: the frame shown is only where the error surfaced",
        r"illegal memory access|device-side assert|unspecified launch failure|misaligned address|illegal instruction was encountered|invalid program counter|cudaErrorIllegalAddress|CUDA_ERROR_(?:ILLEGAL_ADDRESS|ASSERT|LAUNCH_FAILED|MISALIGNED_ADDRESS)|invalid (?:global|shared|address space)|launch timed out|hardware stack error|CUBLAS_STATUS_EXECUTION_FAILED|CUBLAS_STATUS_INTERNAL_ERROR|HSA_STATUS_ERROR_\w+|Memory access fault by GPU|cluster target block not present|tensor map|an illegal",
        "try another attention or MoE backend or a smaller depth, and reproduce once with CUDA_LAUNCH_BLOCKING=1 to get the true frame; memory settings do not help",
        known=True,
        doomed=None,
        confirm="an Xid 13 or 31 in the kernel log, or compute-sanitizer",
    ),
    # collectives
    _rule(
        "collective.timeout",
        "engine.collective_stall",
        "the ranks waited for each other until the collective timed out",
        r"[Cc]ollective operation timeout|Watchdog caught collective|collective.*timed? ?out|timed out (?:in|after|waiting).*(?:barrier|all_?reduce|all_?gather|broadcast|rank|clients)|Timed out waiting \d+ms for (?:recv|send)|wait timeout after \d+ms|[Mm]onitoredBarrier|Detected mismatch between collectives|Rank \d+ failed to pass|Timed out after \d+ seconds waiting for clients|Timed out initializing process group|store.*(?:get|wait).*timeout|ncclRemoteError|allreduce.*timeout|NCCL (?:operation|timeout).*tim",
        "look at which rank is missing or late; a deeper draft, data parallel ranks that skip drafting, or one slow start are typical",
        known=False,
        doomed=None,
        confirm="py-spy dump of every rank while it stands still; TORCH_NCCL_TRACE_BUFFER_SIZE=2000",
    ),
    _rule(
        "collective.store_type",
        "engine.collective_stall",
        "the ranks waited for each other at start until the store timed out",
        type=r"^DistStoreError$",
        remedy="look at which rank did not come up",
        known=False,
    ),
    _rule(
        "hang.rpc",
        "engine.hang",
        "the engine did not answer its own call in time",
        r"RPC call to \w+ timed out|execute_model timed out|[Tt]imed out waiting for (?:engine|the engine)|Timeout waiting for (?:engine|detokenizer)|[Ww]atchdog timeout|did not respond|no response from|Timed out waiting for \w+ to",
        "take `py-spy dump` of every process while it stands; raise the time limit only if the log shows that it was still compiling or loading",
        known=False,
    ),
    _rule(
        "hang.timeout_type",
        "engine.hang",
        "the engine did not answer its own call in time",
        type=r"^TimeoutError$",
        message=r"",
        frames=r"multiproc_executor|core_client|shm_broadcast|engine_core|rpc|scheduler|executor",
        known=False,
    ),
    # toolchain
    _rule(
        "toolchain.import",
        "host.toolchain_missing",
        "a package or library that the engine needs is missing or does not fit",
        type=r"^(?:ModuleNotFoundError|PackageNotFoundError|DistributionNotFound)$",
        doomed=True,
    ),
    _rule(
        "toolchain.importerror",
        "host.toolchain_missing",
        "a package or library that the engine needs is missing or does not fit",
        type=r"^ImportError$",
        doomed=True,
    ),
    _rule(
        "toolchain.native",
        "host.toolchain_missing",
        "a compiled library does not fit the rest of the installation",
        r"cannot open shared object file|undefined symbol|version `\w+_[\d.]+' not found|operator \w+::\w+ does not exist|No such operator|has no attribute '(?:_C|_moe_C)'|_OpNamespace.*has no attribute|Could not load (?:this )?library|incompatible (?:version|with the installed)|ABI mismatch|please (?:re)?install|requires? \S+ ?(?:>=|==|<)|version .*is required|is required for|(?:is|are) not installed|pip install",
        doomed=True,
        frames="",
    ),
    _rule(
        "toolchain.compiler",
        "host.toolchain_missing",
        "a compiler or source file that is needed at run time is missing",
        r"Could not find nvcc|nvcc.*(?:not found|No such file)|CUDA_HOME|cuda_home=|Failed to find C compiler|Ninja (?:is required|build failed)|ninja: error|ninja.*(?:not found|No such file)|No such file or directory: '?(?:[\w/.-]*/)?(?:nvcc|gcc|g\+\+|cc|c\+\+|ninja|clang|ptxas|ld|ldconfig)'?|Python\.h: No such file|fatal error: \S+\.h|missing and no known rule|ptxas (?:fatal|not found)|Error (?:building|compiling) extension|JIT compil\w+ failed|compilation failed|cc1plus|collect2: error|returned non-zero exit status.*(?:nvcc|gcc|cc|ninja)|Cannot find .*(?:cubin|kernel source|header)",
        "install what is missing (CUDA toolkit with nvcc, ninja, a C compiler, Python headers; reinstall the package whose sources are incomplete), then clear its kernel cache",
        doomed=True,
    ),
    _rule(
        "toolchain.subprocess",
        "host.toolchain_missing",
        "a compiler that is needed at run time is missing or failed",
        type=r"^(?:CalledProcessError|FileNotFoundError)$",
        message=r"nvcc|gcc|g\+\+|ninja|clang|ptxas|\bcc\b|ldconfig|triton",
        remedy="install the compiler that is named and everything its build needs; reinstall the package whose sources are incomplete, then clear its kernel cache",
        doomed=True,
    ),
    # sandbox
    _rule(
        "sandbox.permission",
        "supervisor.sandbox_blocked",
        "the operating system or the unit's hardening denied something the engine needs",
        type=r"^PermissionError$",
        message=r"",
        doomed=True,
        remedy="compare with the same command outside the unit; relax the property that blocks it",
        confirm="the same command works outside the unit as the same user",
    ),
    _rule(
        "sandbox.denied",
        "supervisor.sandbox_blocked",
        "the operating system or the unit's hardening denied something the engine needs",
        r"Address family not supported by protocol|Operation not permitted|Read-only file system|\[Errno (?:1|13|30|97)\]",
        "relax the property of the unit that blocks it (RestrictAddressFamilies, PrivateDevices, ReadWritePaths, MemoryDenyWriteExecute, ...)",
        doomed=True,
    ),
    # the model or the draft
    _rule(
        "model.repo",
        "config.model_or_draft_unusable",
        "the model or draft named does not exist where the engine looks",
        type=r"^(?:HFValidationError|RepositoryNotFoundError|EntryNotFoundError|LocalEntryNotFoundError|GatedRepoError|RevisionNotFoundError|OfflineModeIsEnabled|SafetensorError|FileMetadataError|UnpicklingError|BadZipFile)$",
        remedy="check the path or name as the service's user sees it, and that every file is complete",
        doomed=True,
    ),
    _rule(
        "model.files",
        "config.model_or_draft_unusable",
        "the model or draft given is missing files or is not what the engine can load",
        r"does not appear to have a file named|is not a local folder and is not a valid model|Can't load (?:the )?(?:configuration|tokenizer|config)|Cannot find any model weights|[Nn]o (?:safetensors|weights?|model) (?:files?|weights)? ?(?:were )?found|Error while deserializing header|HeaderTooLarge|InvalidHeader|incomplete metadata|MetadataIncompleteBuffer|Unrecognized model in|Should have a `model_type` key|invalid load key|not a valid (?:model|JSON) (?:path|file)|You are trying to access a gated repo|Repo id must be|Repository Not Found|model .*does not exist|Invalid repository ID|not a valid JSON file|checkpoint you are trying to load has model type|Failed to load model|No such file or directory: '[^']*(?:model|config|tokenizer|weights|safetensors)",
        "check the path or name as the service's user sees it, and that every file is complete",
        doomed=True,
    ),
    _rule(
        "model.architecture",
        "config.model_or_draft_unusable",
        "the engine does not support this model or draft for this purpose",
        r"[Mm]odel architectures? .*(?:not supported|failed to be inspected)|architecture.*(?:is|are) not supported|(?:not|only) support(?:s|ed)?\b.{0,80}\b(?:draft|EAGLE|[Ee]agle3?|MTP|NEXTN|DFlash|DSpark|medusa|speculat)|\b(?:draft|EAGLE3?|[Ee]agle3?|MTP|NEXTN|DFlash|DSpark)\b.{0,80}(?:not support|only support|is required|requires|must|does not|doesn't|unsupported|cannot)|Cannot find model module|has no attribute 'model_type'",
        "use the draft that was trained for this target and the algorithm it was trained for",
        doomed=True,
    ),
    _rule(
        "model.vocab",
        "config.model_or_draft_unusable",
        "draft and target do not fit each other",
        r"(?:vocab(?:ulary)?(?: sizes?)?|hidden[_ ]size|tokenizer).{0,80}(?:(?:must|should) (?:match|be (?:the same|equal)|have the same)|mismatch|do not match|does not match|differ|incompatible|not the same)|(?:draft|target).{0,60}(?:mismatch|incompatible|not compatible|(?:must|should) have the same)",
        "use the draft that was trained for this target and the algorithm it was trained for",
        doomed=True,
    ),
    _rule(
        "config.arguments",
        "config.invalid_argument",
        "the arguments were refused before a model was loaded",
        type=r"^(?:ValueError|AssertionError|TypeError|KeyError|NotImplementedError|AttributeError|RuntimeError|JSONDecodeError|Exception|OSError|FileNotFoundError)$",
        frames=_CONFIG_FILES,
        before=2,
        doomed=True,
    ),
    _rule(
        "model.shape",
        "config.model_or_draft_unusable",
        "shapes of the draft (or model) do not fit: the draft does not belong to this target or this algorithm",
        r"[Tt]he size of tensor a \(\d+\) must match|size mismatch for|shape mismatch|mat1 and mat2 shapes cannot be multiplied|shape '?\[[\d, -]+\]'? is invalid|Attempted to load weight .*into parameter|assert .*shape|narrow\(\)|loaded_weight|expanded size of the tensor|copy_.*shape|Sizes of tensors must match",
        "start this draft with the algorithm it was trained for (an EAGLE3 head needs EAGLE3), or take another draft; memory settings do not help",
        before=6,
        doomed=True,
    ),
    _rule(
        "model.weights",
        "config.model_or_draft_unusable",
        "the weights given are not those of the expected model or draft",
        type=r"^(?:KeyError|AttributeError|ValueError|AssertionError|TypeError|RuntimeError|IndexError)$",
        message=r"(?:model\.)?layers\.\d+|weight|lm_head|embed|fc\.|norm|draft|[Ee]agle|num_hidden_layers|hidden_size|vocab|nextn|mtp|ForCausalLM|ForConditionalGeneration|draft_vocab|hot_token|d2t|t2d",
        frames=_LOADER + r"|speculative|spec_decode|eagle|draft",
        before=4,
        doomed=True,
    ),
    _rule(
        "model.attribute",
        "config.model_or_draft_unusable",
        "the model given as draft is of the wrong kind",
        type=r"^AttributeError$",
        message=r"'\w+(?:ForCausalLM|ForConditionalGeneration|Model|Config|MTP|Eagle\w*)' object has no attribute",
        before=6,
        doomed=True,
        remedy="give a draft of the kind this algorithm needs, or an algorithm that needs none",
    ),
    # arguments
    _rule(
        "config.validation",
        "config.invalid_argument",
        "the configuration was refused",
        type=r"^(?:ValidationError|ArgumentError|ArgumentTypeError|UsageError|BadParameter)$",
        doomed=True,
    ),
    _rule(
        "config.text",
        "config.invalid_argument",
        "the arguments were refused before a model was loaded",
        r"User-specified max_model_len|is greater than the derived max_model_len|must be divisible by|is not divisible by|[Uu]nrecognized arguments?|[Uu]nknown (?:argument|option|key)|[Ii]nvalid (?:choice|value|argument)|mutually exclusive|cannot be (?:used|set|combined|enabled) (?:with|together|when)|not (?:supported|compatible) (?:with|when|together)|(?:should|must) be (?:greater|less|positive|at least|one of|set|a multiple|specified|between)|is only supported|Please (?:set|specify|use|disable|remove)",
        before=3,
        doomed=True,
        unless_frames=r"profile|_dummy_run|sampler|warm_?up|:forward|execute_model|capture",
        type=r"^(?:ValueError|AssertionError|TypeError|NotImplementedError|RuntimeError|ArgumentError|Exception)$",
    ),
    # output
    _rule(
        "output.nan",
        "engine.wrong_output",
        "the model's output is not a number any more",
        r"probability tensor contains either|[Nn]a[nN]s? (?:detected|in (?:the )?logits|found)|Detected errors during sampling|logits (?:contain|are) nan",
        "compare with speculation off, greedy, on the same prompts; try another attention backend or dtype",
        known=False,
    ),
    # accounting
    _rule(
        "engine.accounting",
        "engine.internal_error",
        "the engine's own bookkeeping failed; GPU memory is not short",
        r"alloc_\w+ runs? out of memory|(?:memory|token|req\w*|pool) (?:leak|pool leak)|leak detected|(?:Prefill|Decode|Verify) out of memory\. Try to lower your batch size|out of memory.*available_size|runs out of memory",
        "no setting is known to cure it: report it with the lines quoted; fewer concurrent requests may avoid it",
        known=False,
        doomed=None,
    ),
)

_COMPILED: dict[str, re.Pattern[str]] = {}


def pattern(text: str) -> re.Pattern[str]:
    found = _COMPILED.get(text)
    if found is None:
        found = _COMPILED[text] = re.compile(text)
    return found


# -- lines that are no exception --------------------------------------------------------------------------------------

FLAT: tuple[Rule, ...] = (
    _rule(
        "fallout.sigquit",
        "engine.internal_error",
        "the launcher ends its own processes because a child failed",
        r"^(?:Received sigquit from a child process|SIGQUIT received)|^Killed$|crashed with exit code -?\d+\. Triggering SIGQUIT",
        fallout=True,
    ),
    _rule(
        "fallout.died",
        "engine.internal_error",
        "a process of the engine went away",
        r"^Worker \S+ pid \d+ died, exit code|died unexpectedly|exited unexpectedly|^EngineCore failed to start|^EngineCore encountered a fatal error|is dead\. Please check if there are relevant logs|^terminate called after throwing|^Failed core proc|failed to load model,? '|^MPClient: engine core exited|exiting due to (?:model loading|HTTP server) error|failed to (?:create context|load model)|Primary job .*terminated|MPI_ABORT was invoked",
        fallout=True,
    ),
    _rule(
        "args.argparse",
        "config.invalid_argument",
        "the command line was refused",
        r"^[\w./ -]+: error: (?:unrecognized arguments|argument |the following arguments are required|ambiguous option|invalid choice|one of the arguments|No such option|expected )|^(?:Usage|Error): .*(?:No such option|Missing option|Invalid value|no such command)|^Error: (?:No such option|Invalid value|Missing)",
        doomed=True,
    ),
    _rule(
        "args.llama",
        "config.invalid_argument",
        "the command line was refused",
        r"^(?:\S+: )?error(?:: | while )(?:invalid (?:argument|parameter|value)|unknown argument|handling argument|unknown (?:value|speculative|spec)|the argument has been removed|parsing)|the argument has been removed",
        doomed=True,
    ),
    _rule(
        "bind.flat",
        "network.port_in_use",
        "a port the server needs is taken by another process",
        r"\[Errno 98\]|[Aa]ddress already in use|couldn't bind (?:HTTP )?server socket|[Pp]ort is already (?:in use|allocated)|port \d+ is already in use|is not available in \d+ seconds",
        "find the owner with `ss -ltnp`, end it (often the previous instance) or choose another --port",
        doomed=True,
        confirm="`ss -ltnp` names the process that listens",
    ),
    _rule(
        "shm.flat",
        "host.shared_memory_exhausted",
        "/dev/shm is full or too small",
        r"posix_fallocate failed ?: No space left|Error while creating shared memory segment|(?:/dev/shm|shm_open|shared memory).{0,120}(?:No space left|failed|insufficient|Cannot allocate)|insufficient shared memory|unable to (?:open|mmap|write|allocate).{0,60}(?:shared memory|</torch_)|killed by signal: Bus error",
        "give it more: `--shm-size=16g` (or `--ipc=host`) for a container, remount /dev/shm larger on a host, and remove leftovers",
        doomed=True,
        confirm="`df -h /dev/shm`",
    ),
    _rule(
        "llama.gpu_alloc",
        "memory.gpu_oom",
        "a GPU allocation failed",
        r"cudaMalloc failed: out of memory|hipMalloc failed|failed to allocate (?:CUDA|ROCm|Vulkan|SYCL|Metal|MUSA)\d* ?buffer|unable to allocate (?:CUDA|ROCm|Vulkan|SYCL|Metal|MUSA)\d*|^CUDA error: out of memory|ErrorOutOfDeviceMemory|vk::Device::allocateMemory|failed to allocate.* on device|CUDA out of memory|NCCL WARN Cuda failure (?:\d+ )?'out of memory'",
    ),
    _rule(
        "trt.executor",
        "memory.gpu_oom_startup",
        "the executor could not be created for lack of GPU memory",
        r"Executor creation failed due to insufficient GPU memory|[Cc]ould not be created: .*insufficient",
        "the component named next asked for more than was free: lower free_gpu_memory_fraction or max_tokens of the KV cache",
        doomed=True,
    ),
    _rule(
        "llama.host_alloc",
        "memory.kv_pool_too_small",
        "the KV cache asked for does not fit into memory",
        r"failed to allocate buffer for kv cache|failed to allocate CPU buffer of size",
        "a smaller -c, fewer -np, or a quantised cache (-ctk q8_0 -ctv q8_0)",
        before=6,
        doomed=True,
    ),
    _rule(
        "gpu.assert",
        "gpu.kernel_fault",
        "a GPU kernel asserted",
        r"\.cuh?:\d+: .*[Aa]ssert(?:ion)? .*failed\.?$",
        "reproduce once with CUDA_LAUNCH_BLOCKING=1; try another backend, the overlap scheduler off, or a smaller depth",
        confirm="compute-sanitizer or TORCH_USE_CUDA_DSA",
    ),
    _rule(
        "gpu.fault_flat",
        "gpu.kernel_fault",
        "a GPU kernel failed: the frame shown is only where the error surfaced",
        r"CUDA error: (?:an illegal|device-side|unspecified launch|misaligned|an illegal instruction)|terminated with exception: CUDA error: an illegal|Memory access fault by GPU node|HSA_STATUS_ERROR_|GPU core dump|HW Exception by GPU|ROCm error: (?:unspecified|an illegal)",
        "try another attention or MoE backend or a smaller depth, and reproduce once with CUDA_LAUNCH_BLOCKING=1",
        confirm="an Xid 13 or 31 in the kernel log",
    ),
    _rule(
        "gpu.hw_flat",
        "gpu.hardware_fault",
        "the GPU or its bus failed",
        r"uncorrectable (?:ECC|NVLink) error|GPU is lost|fallen off the bus|ErrorDeviceLost|Unable to determine the device handle .*GPU is lost",
        "take this GPU out of service; settings cannot help",
        doomed=True,
    ),
    _rule(
        "driver.flat",
        "gpu.driver_unavailable",
        "CUDA cannot be used on this host or in this container",
        r"Failed to initialize NVML|[Dd]river/library version mism|nvidia-container-cli: (?:initialization error|device error|detection error)|could not select device driver|NVIDIA-SMI has failed|failed to initialize CUDA|ggml_cuda_init: failed|no CUDA-capable device|CUDA driver version is insufficient|system not yet initialized|unresolvable CDI devices|No devices were found|Error 80[234]:|no usable GPU found",
        "check `nvidia-smi` in the same environment as the service: after a driver upgrade reboot (or reload the module), start nvidia-fabricmanager where NVSwitch is present, recreate a container that lost its devices",
        doomed=True,
        confirm="`nvidia-smi` fails in the same environment",
    ),
    _rule(
        "llama.model",
        "config.model_or_draft_unusable",
        "the model or draft file is missing, broken or of the wrong kind",
        r"invalid magic characters|gguf_init_from_file\w*: |error loading model|failed to (?:open|load) (?:GGUF file|draft model|model '|model from)|is not within the file bounds|unknown model architecture|missing tensor|wrong number of tensors|model doesn't contain MTP|doesn't contain \w+ layers|has wrong shape|key not found in model|tensor '[^']*' (?:data|not found)|failed to read magic|unsupported (?:GGUF|model) version|requires a draft model|invalid (?:split|vocab)",
        "check the file (size, checksum, first bytes) and that the draft is of the kind this method needs",
        doomed=True,
    ),
    _rule(
        "llama.model_loose",
        "config.model_or_draft_unusable",
        "the draft or model cannot do what was asked for",
        r"context type \w+ requested but|failed to create (?:MTP|draft|EAGLE3?|speculative) context|model (?:does not|doesn't) (?:have|contain|support)|not (?:a|an) (?:valid )?(?:GGUF|draft|EAGLE3?|MTP|DFlash) model",
        "give the method a draft of the kind it needs",
        doomed=True,
        before=6,
    ),
    _rule(
        "toolchain.flat",
        "host.toolchain_missing",
        "a library, compiler or instruction set that the engine needs is missing",
        r"Illegal instruction|uncaught target signal 4|error while loading shared libraries|cannot open shared object file|symbol lookup error|version `\w+_[\d.]+' not found|^\S*(?:sh|bash|env)?:? ?(?:line \d+: )?\S+: (?:command )?not found$|: No such file or directory$(?<=nvcc: No such file or directory)|ninja: error:|^nvcc fatal|^ptxas fatal|fatal error: \S+\.h: No such file",
        "install a build that fits this machine (CPU instructions, CUDA version), or what is missing",
        doomed=True,
    ),
    _rule(
        "native.assert",
        "engine.internal_error",
        "the engine's own assertion failed",
        r"GGML_ASSERT\(.*\) failed|: Assertion .* failed\.?$|^Assertion failed:|GGML_ABORT",
        "report it with the lines quoted; until then avoid what triggers it (a smaller draft depth or context for the draft)",
        known=True,
        doomed=None,
    ),
    _rule(
        "native.bus",
        "host.shared_memory_exhausted",
        "a bus error: a shared memory mapping could not be filled",
        r"^Fatal Python error: Bus error|^Bus error",
        "look at `df -h /dev/shm` at the moment it happens; give the container --shm-size=16g or --ipc=host",
        confirm="`df -h /dev/shm` while it runs",
        known=True,
    ),
    _rule(
        "native.segv",
        "engine.internal_error",
        "native code of the engine crashed",
        r"Segfault encountered|^Fatal Python error: (?:Segmentation fault|Aborted)|^Segmentation fault|\*\*\* (?:SIG|Process received signal|Aborted)|^Caught signal 11|^Aborted(?: \(core dumped\))?$|double free or corruption|corrupted size vs|free\(\): invalid|malloc\(\): |stack smashing",
        "take a core dump (`coredumpctl`) and report it; try another version or backend",
        known=False,
    ),
    _rule(
        "memory.node_monitor_flat",
        "memory.host_oom_kill",
        "a memory monitor ended a process of the engine because the host ran out of memory",
        r"killed due to memory pressure|memory pressure \(OOM\)|low-memory killer",
        "give the host more memory, move the neighbour that fills it, or load with fewer processes at once",
    ),
    _rule(
        "hang.watchdog",
        "engine.hang",
        "the engine made no progress until its watchdog ended it",
        r"^(?:Scheduler |Detokenizer |Tokenizer )?[Ww]atchdog timeout|self\.watchdog_timeout=\d+|Watchdog TokenizerManager timeout|soft watchdog",
        "take `py-spy dump` of every scheduler before the watchdog ends it; try with the features combined here switched off one by one",
        known=False,
        confirm="the dump of the thread that is active",
    ),
    _rule(
        "hang.health",
        "engine.hang",
        "the engine gives no answer although its process lives",
        r"^Health check failed\.|couldn't get a response from (?:the )?(?:detokenizer|scheduler)|Engine (?:is )?unhealthy|Timed out waiting for engine|RPC call to \w+ timed out|Health check (?:request )?timed? ?out|heartbeat (?:timed out|missed|lost)",
        "take `py-spy dump` of every process while it stands; restart it when the dump is taken",
        known=False,
        confirm="py-spy dump of the schedulers",
    ),
    _rule(
        "hang.shm_broadcast",
        "engine.hang",
        "processes of the engine wait for each other and nothing moves",
        r"No available shared memory broadcast block found in \d+ ?(?:seconds|second\(s\))",
        'take `py-spy dump` of every rank while it stands; the words "shared memory" here mean the engine\'s own queue, not /dev/shm',
        known=False,
    ),
    _rule(
        "collective.watchdog",
        "engine.collective_stall",
        "the ranks waited for each other until the collective timed out",
        r"[Ww]atchdog caught collective operation timeout|Observed flight recorder dump signal|failure detected by watchdog at work|WorkNCCL\(SeqNum=\d+.*ran for|Heartbeat monitor timed out|ProcessGroupNCCL's watchdog got stuck|Timeout at NCCL work|Rank \d+ .*timed out waiting|\d+/\d+ clients joined|NCCL WARN .*[Tt]imeout|RCCL.*timeout",
        "look at which rank is missing or late (last completed against last enqueued work of each rank)",
        known=False,
        confirm="py-spy dump of every rank; TORCH_NCCL_TRACE_BUFFER_SIZE=2000",
    ),
    _rule(
        "sandbox.flat",
        "supervisor.sandbox_blocked",
        "the operating system or the unit's hardening denied something the engine needs",
        r"Address family not supported by protocol|Read-only file system|[Bb]ad system call|seccomp|apparmor=\"DENIED\"|avc:\s+denied",
        "relax the property or profile that blocks it",
        doomed=True,
    ),
    _rule(
        "toolchain.exec",
        "host.toolchain_missing",
        "the executable does not exist or cannot be run",
        r"exec: .*: (?:not found|no such file)|OCI runtime.*executable file not found|executable file not found in \$PATH",
        "install the engine where the service looks for it",
        doomed=True,
    ),
)

_HINTS = re.compile(
    r"rror|fail|Fail|xcept|lready|in use|bind|hared|shm|emory|alloc|ssert|CUDA|Cuda|NVML|NVIDIA|nvidia|GPU|HSA|HW |ROCm|ggml|gguf|model|tensor|nstruction|signal 4|librar|symbol|not found|ninja|nvcc|ptxas|core dumped|egfault|egmentation|bort|BORT|Bus|atchdog|ealth|heartbeat|RPC|ollective|NCCL|RCCL|ecorder|flight|clients joined|timed|eccomp|denied|DENIED|ystem|sigquit|SIGQUIT|Killed|died|dead|exit|terminate|crashed|double free|corrupt|free\(\)|pressure|killer|malloc|stack|magic|Usage|draft|context type|doesn't|does not|devices|driver|Timeout|timeout|rejected|removed"
)


@functools.lru_cache(maxsize=8192)
def match_flat(text: str) -> Rule | None:
    """The rule of a line that is no exception, or ``None``."""
    if not _HINTS.search(text):
        return None
    clipped = text[:2000]
    for rule in FLAT:
        if pattern(rule.message).search(clipped):
            return rule
    return None


def match_exception(short_type: str, body: str, frames: tuple[str, ...], stage: int) -> Rule | None:
    """The first rule that an exception satisfies at this stage of life."""
    clipped = body[:4000]
    joined = "\n".join(frames)
    for rule in EXCEPTIONS:
        if not rule.since <= stage < rule.before:
            continue
        if rule.type and not pattern(rule.type).search(short_type):
            continue
        if rule.frames and not pattern(rule.frames).search(joined):
            continue
        if rule.unless_frames and pattern(rule.unless_frames).search(joined):
            continue
        if rule.message and not pattern(rule.message).search(clipped):
            continue
        if rule.type or rule.message:
            return rule
    return None
