"""Duration of an engine step: a roofline with documented constants.

    step = OVERHEAD + max(compute, weights) + attention + kv
    compute    2 * PARAMETERS * tokens / (peak flops * FLOPS_SHARE)        all tokens of the batch
    weights    PARAMETERS * 2 bytes / (bandwidth * BANDWIDTH_SHARE)        read once a step
    attention  4 * LAYERS * HIDDEN * sum of the contexts of prompt tokens / effective flops
    kv         KV_BYTES * sum of the contexts of decoding requests / effective bandwidth

Sources: the model is Llama 3.1 8B in 16 bits (its config.json: 32 layers, hidden size 4096, 8 KV
heads of 128; 8.03e9 parameters). Peaks are from NVIDIA's data sheets: A100 SXM 312e12 flop/s,
1.555e12 (40 GB) and 2.039e12 byte/s (80 GB); H100 SXM 989e12 flop/s, 3.35e12 byte/s. The rooflines
follow Pope et al., Efficiently Scaling Transformer Inference (2022); shares of the peak are usual
values for prompts of some thousand tokens (0.5 on A100, 0.4 on H100) and for reading (0.75).
Budgets and the share of the memory are vLLM's defaults: max_num_batched_tokens 2048, on H100 8192;
gpu_memory_utilization 0.9; max_num_seqs 256. 2 GB are left for activations.
"""

from typing import NamedTuple

BLOCK_TOKENS = 64
"""Block size of replays, in tokens. vLLM's default is 16; four times as much makes a run four
times as fast, and costs at most 63 tokens of each hit.
"""

PARAMETERS = 8.03e9
LAYERS = 32
HIDDEN = 4096
KV_BYTES = 131_072
"""Bytes per token: 2 * 32 layers * 8 heads * 128 * 2 bytes."""
BANDWIDTH_SHARE = 0.75
HOST_BANDWIDTH = 20e9
"""Bytes/s from host memory to the device, of 32e9 of PCIe 4.0 x16."""
OVERHEAD_S = 0.003
"""Scheduling, launch, sampling and answer, in seconds per step."""
ACTIVATION_BYTES = 2e9


class Hardware(NamedTuple):
    """Hardware of a rank.

    flops:      16-bit peak times the share that prompts reach [1/s]
    bandwidth:  of the memory, data sheet [bytes/s];  memory: [bytes]
    declared_blocks: known size of the cache; 0 means as many blocks as fit
    block_tokens: tokens of a block, equal for all ranks of a fleet
    host_blocks:  capacity of the host tier, which gets the evicted blocks
    """

    name: str
    flops: float
    bandwidth: float
    memory: float
    batch_tokens: int
    running_max: int = 256
    declared_blocks: int = 0
    block_tokens: int = BLOCK_TOKENS
    host_blocks: int = 0

    @property
    def kv_blocks(self) -> int:
        """Declared blocks, else the blocks that fit beside weights and activations."""
        if self.declared_blocks:
            return self.declared_blocks
        # 0.9 is vLLM's gpu_memory_utilization.
        free = 0.9 * self.memory - 2 * PARAMETERS - ACTIVATION_BYTES
        return int(free / (KV_BYTES * self.block_tokens))

    @property
    def prefill_tokens_per_s(self) -> float:
        """Speed of a full batch of prompts, without attention."""
        return self.flops / (2 * PARAMETERS)

    def step_s(self, prompt_tokens: int, prompt_contexts: float, decoding: int) -> float:
        """Return the seconds of a step without the reading of contexts, which `context_s` adds.

        prompt_contexts: sum over the prompt tokens of the tokens before them
        """
        compute = 2 * PARAMETERS * (prompt_tokens + decoding) / self.flops
        weights = 2 * PARAMETERS / (self.bandwidth * BANDWIDTH_SHARE)
        attention = 4 * LAYERS * HIDDEN * prompt_contexts / self.flops
        return OVERHEAD_S + max(compute, weights) + attention

    @property
    def host_load_s(self) -> float:
        """Seconds per token that a step loads from the host tier."""
        return KV_BYTES / HOST_BANDWIDTH

    @property
    def context_s(self) -> float:
        """Seconds per token of context that a decoding request reads in a step."""
        return KV_BYTES / (self.bandwidth * BANDWIDTH_SHARE)


A100_40 = Hardware("A100 40 GB", 0.5 * 312e12, 1.555e12, 40e9, 2048)
A100_80 = Hardware("A100 80 GB", 0.5 * 312e12, 2.039e12, 80e9, 2048)
H100_80 = Hardware("H100 80 GB", 0.4 * 989e12, 3.35e12, 80e9, 8192)

Fleet = tuple[Hardware, ...]

EQUAL: Fleet = (A100_40,) * 8
LARGE: Fleet = (A100_80,) * 8
MIXED: Fleet = (A100_40,) * 4 + (A100_80,) * 2 + (H100_80,) * 2
