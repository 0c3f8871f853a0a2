"""What becomes of each option of vLLM's (0.33) that Quire has not under its name: data.

An option that changes how fast vLLM is, or what it logs, or that would change nothing there for a
model as Quire serves it, has no effect here. One that Quire does in one way only may ask for that.
Others are refused, with what to use. tests/unit/launch/vllm/options.json has all names.
"""

from types import MappingProxyType
from typing import Any


def _names(*lines: str) -> frozenset[str]:
    return frozenset(name for line in lines for name in line.split())


SWITCHES = _names(
    "aggregate-engine-logging allow-credentials allow-deprecated-quantization async-scheduling",
    "cohere-is-reasoning-model cudagraph-metrics data-parallel-external-lb data-parallel-hybrid-lb",
    "data-parallel-multi-port-external-lb dcp-q-replicate disable-cascade-attn",
    "disable-chunked-mm-input disable-custom-all-reduce disable-fastapi-docs",
    "disable-hybrid-kv-cache-manager disable-log-requests disable-log-stats",
    "disable-nccl-for-dp-synchronization disable-sliding-window disable-uvicorn-access-log",
    "enable-auto-tool-choice enable-batch-sharded-sampling enable-chunked-prefill",
    "enable-cumem-allocator enable-dbo enable-elastic-ep enable-ep-weight-filter enable-eplb",
    "enable-expert-parallel enable-fault-tolerance enable-flash-late-interaction",
    "enable-flashinfer-autotune enable-force-include-usage enable-hc-sp",
    "enable-layerwise-nvtx-tracing enable-log-deltas enable-log-outputs enable-log-requests",
    "enable-logging-iteration-details enable-lora enable-mamba-cache-stochastic-rounding",
    "enable-mamba-shared-prefix-checkpoint enable-mfu-metrics enable-mixed-moe-lora-format",
    "enable-mm-embeds enable-moe-shared-loras enable-nccl-comm-suspend enable-offline-docs",
    "enable-per-request-metrics enable-prefix-caching enable-prompt-embeds",
    "enable-prompt-tokens-details",
    "enable-request-id-headers enable-return-routed-experts enable-scale-out",
    "enable-server-load-tracking enable-shm-tensor-arena enable-sleep-mode enable-ssl-refresh",
    "enable-tokenizer-info-endpoint enable-tower-connector-lora enable-trace-replay",
    "exclude-tools-when-tool-choice-none fail-on-environ-validation fully-sharded-loras grpc",
    "headless interleave-mm-strings jit-monitor-verbose kv-cache-metrics kv-sharing-fast-prefill",
    "language-model-only log-error-stack long-prefill-token-threshold-adaptive",
    "mm-device-do-normalize mm-encoder-only monokernel numa-bind ray-workers-use-nsight",
    "return-sampling-mask return-tokens-as-token-ids scheduler-reserve-full-isl skip-mm-profiling",
    "skip-tokenizer-init sleep-mode-offload-cudagraph specialize-active-lora swa-bounded-replay",
    "tokens-only trust-remote-code trust-request-chat-template trust-request-mm-kwargs",
    "use-fp64-gumbel use-replayssm use-tqdm-on-load",
    "engine-use-ray use-dummy-weights use-np-weights worker-use-ray",
)
"""Options without a value; each has a --no- form."""

LISTS = _names(
    "api-key allowed-headers allowed-media-domains allowed-methods allowed-origins",
    "collect-detailed-traces cpu-offload-params cudagraph-capture-sizes device-ids ignore-patterns",
    "kv-cache-dtype-skip-layers logits-processors lora-modules lora-target-modules middleware",
    "numa-bind-cpus numa-bind-nodes offload-params served-model-name",
    "sleep-preserve-parameter-names",
)
"""Options that take all words up to the next option."""

SHORT = MappingProxyType(
    {
        "-ac": "attention-config",
        "-asc": "api-server-count",
        "-cc": "compilation-config",
        "-dc": "diffusion-config",
        "-dcp": "decode-context-parallel-size",
        "-dp": "data-parallel-size",
        "-dpa": "data-parallel-address",
        "-dpb": "data-parallel-backend",
        "-dpe": "data-parallel-external-lb",
        "-dph": "data-parallel-hybrid-lb",
        "-dpl": "data-parallel-size-local",
        "-dpm": "data-parallel-multi-port-external-lb",
        "-dpn": "data-parallel-rank",
        "-dpp": "data-parallel-rpc-port",
        "-dpr": "data-parallel-start-rank",
        "-ep": "enable-expert-parallel",
        "-n": "nnodes",
        "-O": "optimization-level",
        "-pcp": "prefill-context-parallel-size",
        "-pp": "pipeline-parallel-size",
        "-q": "quantization",
        "-r": "node-rank",
        "-sc": "speculative-config",
        "--device-memory-utilization": "gpu-memory-utilization",
    }
)
"""Other spellings."""

NO_EFFECT = _names(
    # Kernels, graphs, and where memory is.
    "all2all-backend attention-backend attention-config compilation-config cudagraph-capture-sizes",
    "cudagraph-metrics disable-cascade-attn disable-custom-all-reduce enable-cumem-allocator",
    "enable-flashinfer-autotune enable-nccl-comm-suspend enable-shm-tensor-arena",
    "gdn-prefill-backend ir-op-priority kda-decode-backend kda-prefill-backend kernel-config",
    "kv-sharing-fast-prefill linear-backend max-cudagraph-capture-size monokernel moe-backend",
    "numa-bind numa-bind-cpus numa-bind-nodes optimization-level performance-mode",
    "sparse-indexer-topk-backend swa-bounded-replay",
    # Ranks and experts.
    "dbo-decode-token-threshold dbo-prefill-token-threshold dcp-comm-backend",
    "dcp-kv-cache-interleave-size dcp-q-replicate cp-kv-cache-interleave-size",
    "data-parallel-backend data-parallel-rpc-port data-parallel-supervisor-port",
    "disable-nccl-for-dp-synchronization dp-supervisor-probe-failure-threshold",
    "dp-supervisor-probe-interval-s dp-supervisor-probe-timeout-s dp-sync-interval",
    "elastic-ep-max-dp-size enable-batch-sharded-sampling enable-dbo enable-ep-weight-filter",
    "enable-eplb enable-expert-parallel enable-hc-sp eplb-config expert-placement-strategy",
    "fault-tolerance-config enable-fault-tolerance master-addr master-port",
    "max-parallel-loading-workers ray-workers-use-nsight ubatch-size watchdog-config",
    # Loading.
    "code-revision ignore-patterns model-loader-extra-config pt-load-map-location",
    "safetensors-load-strategy safetensors-prefetch-block-size safetensors-prefetch-num-threads",
    "trust-remote-code use-tqdm-on-load allow-deprecated-quantization hf-token",
    # Cache and steps.
    "disable-hybrid-kv-cache-manager kv-offloading-backend long-prefill-token-threshold",
    "long-prefill-token-threshold-adaptive offload-backend offload-num-in-group",
    "offload-prefetch-step cpu-offload-params offload-params prefill-schedule-interval",
    "prefix-cache-retention-interval prefix-caching-hash-algo prefix-match-unit",
    "scheduler-reserve-full-isl stream-interval watermark sleep-mode-backend",
    "sleep-mode-offload-cudagraph sleep-preserve-parameter-names",
    # Layers that no model here has.
    "enable-mamba-cache-stochastic-rounding enable-mamba-shared-prefix-checkpoint mamba-backend",
    "mamba-block-size mamba-cache-dtype mamba-cache-mode mamba-cache-philox-rounds",
    "mamba-ssm-cache-dtype mamba-ssu-algorithm replayssm-buffer-len use-replayssm",
    # Images, which no request may have.
    "disable-chunked-mm-input interleave-mm-strings language-model-only mm-device-do-normalize",
    "mm-encoder-attn-backend mm-encoder-attn-dtype mm-encoder-fp8-scale-path",
    "mm-encoder-fp8-scale-save-margin mm-encoder-fp8-scale-save-path mm-encoder-tp-mode",
    "mm-hasher-algorithm mm-ipc-gpu-memory-gb mm-processor-cache-gb mm-processor-cache-type",
    "mm-processor-device mm-shm-cache-max-object-size-mb mm-tensor-ipc skip-mm-profiling",
    "trust-request-mm-kwargs video-pruning-method video-pruning-rate ec-manager-config",
    # Adapters, without --enable-lora.
    "enable-mixed-moe-lora-format enable-moe-shared-loras enable-tower-connector-lora",
    "fully-sharded-loras lora-dtype lora-target-modules max-cpu-loras max-lora-cls-labels",
    "max-lora-rank max-loras specialize-active-lora",
    # What is logged, measured and shown.
    "aggregate-engine-logging collect-detailed-traces custom-histogram-buckets",
    "disable-access-log-for-endpoints disable-fastapi-docs disable-log-requests disable-log-stats",
    "disable-uvicorn-access-log enable-layerwise-nvtx-tracing enable-log-deltas",
    "enable-log-outputs enable-log-requests enable-logging-iteration-details enable-mfu-metrics",
    "enable-offline-docs fail-on-environ-validation jit-monitor-mode jit-monitor-verbose",
    "kv-cache-metrics kv-cache-metrics-sample log-config-file log-error-stack logging-config",
    "max-log-len per-request-spec-decode-metrics profiler-config show-hidden-metrics-for-version",
    "uvicorn-log-level",
    # The server.
    "api-server-count cohere-format cohere-is-reasoning-model enable-flash-late-interaction",
    "fingerprint-mode fingerprint-value h11-max-header-count h11-max-incomplete-event-size",
    "renderer-num-workers ssl-ciphers",
)
"""Options that change no answer here."""

ALWAYS = _names(
    "exclude-tools-when-tool-choice-none",
    "enable-auto-tool-choice enable-chunked-prefill enable-prompt-tokens-details",
    "enable-request-id-headers enable-server-load-tracking enable-ssl-refresh",
    "enable-tokenizer-info-endpoint grpc",
)
"""Switches for what is always so: on asks for nothing, off is refused."""

ONE_WAY: MappingProxyType[str, tuple[Any, ...]] = MappingProxyType(
    {
        "allow-credentials": (False,),
        "allowed-headers": (["*"],),
        "allowed-methods": (["*"],),
        "anthropic-disabled-thinking-effort": ("auto", "none"),
        "chat-template-content-format": ("auto",),
        "config-format": ("auto", "hf"),
        "convert": ("auto", "none", "embed"),
        "data-parallel-rank": (0,),
        "data-parallel-size": (1,),
        "data-parallel-size-local": (1,),
        "data-parallel-start-rank": (0,),
        "decode-context-parallel-size": (1,),
        "limit-mm-per-prompt": (0,),
        "logprobs-mode": ("raw_logprobs",),
        "max-logprobs": (20,),
        "model-impl": ("auto",),
        "nnodes": (1,),
        "node-rank": (0,),
        "pipeline-parallel-size": (1,),
        "prefill-context-parallel-size": (1,),
        "response-role": ("assistant",),
        "runner": ("auto", "generate", "pooling"),
        "scheduling-policy": ("fcfs", "priority"),
        "tokenizer-mode": ("auto", "hf"),
        "tool-strict-level": ("auto",),
    }
)
"""Values of what Quire does in one way: those that ask for it."""

OF_SERVERS = _names(
    "allow-credentials allowed-headers allowed-methods allowed-origins api-server-count",
    "anthropic-disabled-thinking-effort chat-template-content-format cohere-format",
    "cohere-is-reasoning-model disable-access-log-for-endpoints disable-fastapi-docs",
    "disable-log-requests disable-uvicorn-access-log enable-auto-tool-choice",
    "enable-flash-late-interaction enable-log-deltas enable-log-outputs enable-log-requests",
    "enable-offline-docs enable-per-request-metrics enable-prompt-tokens-details",
    "enable-request-id-headers enable-scale-out enable-server-load-tracking enable-ssl-refresh",
    "enable-tokenizer-info-endpoint engine-use-ray exclude-tools-when-tool-choice-none",
    "fingerprint-mode fingerprint-value grpc h11-max-header-count h11-max-incomplete-event-size",
    "headless log-config-file log-error-stack lora-modules max-log-len middleware response-role",
    "shutdown-timeout ssl-ciphers tokens-only tool-parser-plugin tool-server tool-strict-level",
    "trust-request-chat-template trust-request-mm-kwargs uvicorn-log-level",
)
"""Options that vLLM's engines have not, only its servers: programs may have their own."""

_CELLS = "more machines are more cells: `quire scheduler` for each, `quire router --scheduler`"
_IMAGES = "images, audio and video are not served"
_LORA = "adapters are not served: merge it into the model's weights"
_CODE = "code of others is not loaded"
ABSENT = MappingProxyType(
    {
        name: why
        for why, names in {
            _LORA: "enable-lora lora-modules default-mm-loras",
            _IMAGES: "enable-mm-embeds allowed-local-media-path allowed-media-domains "
            "ec-transfer-config media-io-kwargs mm-encoder-only mm-processor-kwargs",
            _CELLS: "data-parallel-address data-parallel-external-lb data-parallel-hybrid-lb "
            "data-parallel-multi-port-external-lb enable-elastic-ep headless",
            "the cache is not moved to other servers; cells move blocks by themselves, see "
            "`quire scheduler --move-blocks`": "kv-transfer-config kv-events-config",
            "weights are not replaced while a model is served; `quire roll` takes new ones": (
                "weight-transfer-config enable-sleep-mode"
            ),
            "weights stay where they compute; --quantization makes them smaller": (
                "cpu-offload-gb offload-group-size"
            ),
            "preempted requests move to host memory by --swap-space, prefixes do not": (
                "kv-offloading-size"
            ),
            _CODE: "io-processor-plugin logits-processors middleware model-class-overrides "
            "reasoning-parser-plugin scheduler-cls tool-parser-plugin worker-cls "
            "worker-extension-cls",
            "tools are called by whoever asked": "tool-server",
            "--chat-template is the only one": "trust-request-chat-template",
            "CUDA_VISIBLE_DEVICES says which GPUs there are": "device-ids",
            "--hf-overrides changes what config.json says": "hf-config-path",
            "metrics and traces say where time goes": "enable-per-request-metrics",
            "prompts are text or token ids": "enable-prompt-embeds skip-tokenizer-init",
            "log-probabilities say what was likely": (
                "enable-return-routed-experts return-sampling-mask aux-output-config"
            ),
            "`quire serve --record` and `quire replay` do that": "enable-trace-replay",
            "give `quire.v1.InferenceService` token ids at --grpc-port": (
                "tokens-only enable-scale-out"
            ),
            "windows of a model are part of it": "disable-sliding-window",
            "drawing has one arithmetic, which answers can be repeated by": "use-fp64-gumbel",
            "no model here has that": "diffusion-config engram-config watermark-config",
            "vectors are those of the last token": "pooler-config",
            "`reasoning_effort` goes to the template as it is": "reasoning-effort-map",
            "--reasoning-parser names the format": "reasoning-config",
            "the files say how weights are held": "quantization-config",
            "--kv-cache-dtype is of all layers": "kv-cache-dtype-skip-layers",
            "there is nothing else to configure": "additional-config",
        }.items()
        for name in names.split()
    }
)
"""Options for what is not there, and what to use or why."""
