"""XXH3-64 over token windows, and the chain of sequence hashes: compiled loops over plain arrays.

A message is a window of uint32 tokens, read as little-endian bytes, so its length is always a
multiple of four; windows of any such length and any seed are hashed exactly as XXH3-64 hashes the
bytes.  The function has five shapes by length: 0, 4-8, 9-16, 17-128, 129-240 and more bytes.  All
of them mix the input with a fixed secret of 192 bytes; messages over 240 bytes use a secret that is
first shifted by the seed, and so does, in effect, everything from 17 to 128 bytes.  The shifted
secret depends on the seed alone, so one call for many windows derives it once.

The choice of seeds, and of the tokens of a block, belongs to `hashing`.

Source: the XXH3 specification, https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md
"""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

import numpy as np

from indexer.jit.decorators import READ_ONLY, compiled, intrinsic
from indexer.jit.memory_kernels import stack_array

U32 = np.uint32
U64 = np.uint64

P32_1 = U64(0x9E3779B1)
P32_2 = U64(0x85EBCA77)
P32_3 = U64(0xC2B2AE3D)
P64_1 = U64(0x9E3779B185EBCA87)
P64_2 = U64(0xC2B2AE3D27D4EB4F)
P64_3 = U64(0x165667B19E3779F9)
P64_4 = U64(0x85EBCA77C2B2AE63)
P64_5 = U64(0x27D4EB2F165667C5)
MX1 = U64(0x165667919E3779F9)
MX2 = U64(0x9FB21C651E98DF25)
LOW32 = U64(0xFFFFFFFF)

# Default secret of XXH3, as 24 little-endian words.
SECRET = np.frombuffer(
    bytes.fromhex(
        "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671f"
        "cb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c"
        "3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
        "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364"
        "eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e"
        "2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
    ),
    "<u8",
).copy()

TOKENS, WORDS = READ_ONLY.format("uint32"), READ_ONLY.format("uint64")

STRIPE_WORDS = 16  # words of 32 bits: one stripe is 64 bytes
STRIPES_PER_ROUND = 16  # (192 - 64) / 8: the accumulators are scrambled after this many
CHAIN_SEED = U64(1337)

secret_buffer = stack_array("uint64", len(SECRET))
lane_buffer = stack_array("uint64", 8)


@intrinsic
def fold_product(_context, _a, _b):
    """Return the low half xor the high half of the 128-bit product of two uint64."""
    from llvmlite import ir
    from numba import types

    def generate(_codegen, builder, _signature, args):
        wide = ir.IntType(128)
        product = builder.mul(builder.zext(args[0], wide), builder.zext(args[1], wide))
        high = builder.lshr(product, ir.Constant(wide, 64))
        word = ir.IntType(64)
        return builder.xor(builder.trunc(product, word), builder.trunc(high, word))

    return types.uint64(types.uint64, types.uint64), generate


@intrinsic
def swap_bytes(_context, _a):
    """Return the uint64 with its eight bytes in the opposite order."""
    from numba import types

    def generate(_codegen, builder, _signature, args):
        return builder.bswap(args[0])

    return types.uint64(types.uint64), generate


@compiled(forceinline=True)
def word_at(tokens, at):
    """Return two tokens from index `at` as a little-endian uint64, their form in memory."""
    return U64(tokens[at]) | (U64(tokens[at + U64(1)]) << U64(32))


@compiled(forceinline=True)
def secret_at(secret, byte):
    """Return the uint64 at any byte of a secret of 24 words, wholly inside."""
    word = byte >> U64(3)
    shift = (byte & U64(7)) << U64(3)
    if shift == 0:
        return secret[word]
    return (secret[word] >> shift) | (secret[word + U64(1)] << (U64(64) - shift))


@compiled(forceinline=True)
def avalanche(h):
    h ^= h >> U64(37)
    h *= MX1
    return h ^ (h >> U64(32))


@compiled()
def derive_secret(seed, out):
    """Shift the default secret by `seed` into `out` (uint64 [24])."""
    for k in range(0, 24, 2):
        out[k] = SECRET[k] + seed
        out[k + 1] = SECRET[k + 1] - seed


@compiled()
def hash_empty(seed):
    """Hash a message of no bytes."""
    h = seed ^ SECRET[7] ^ SECRET[8]
    h ^= h >> U64(33)
    h *= P64_2
    h ^= h >> U64(29)
    h *= P64_3
    return h ^ (h >> U64(32))


@compiled()
def hash_4_to_8(tokens, at, words, seed):
    """Hash one or two tokens."""
    length = words << U64(2)
    low_swapped = swap_bytes(seed & LOW32) >> U64(32)
    seed ^= low_swapped << U64(32)
    first = U64(tokens[at])
    last = U64(tokens[at + words - U64(1)])
    h = (last + (first << U64(32))) ^ ((SECRET[1] ^ SECRET[2]) - seed)
    h ^= ((h << U64(49)) | (h >> U64(15))) ^ ((h << U64(24)) | (h >> U64(40)))
    h *= MX2
    h ^= (h >> U64(35)) + length
    h *= MX2
    return h ^ (h >> U64(28))


@compiled(forceinline=True)
def hash_9_to_16(first, last, length, seed):
    """Hash 9 to 16 bytes; first, last: the first and the last eight bytes, which may overlap."""
    low = first ^ ((SECRET[3] ^ SECRET[4]) + seed)
    high = last ^ ((SECRET[5] ^ SECRET[6]) - seed)
    return avalanche(length + swap_bytes(low) + high + fold_product(low, high))


@compiled(forceinline=True)
def mix16(tokens, at, secret, k):
    """Mix four tokens with two words of the shifted secret."""
    low = word_at(tokens, at) ^ secret[k]
    high = word_at(tokens, at + U64(2)) ^ secret[k + U64(1)]
    return fold_product(low, high)


@compiled(forceinline=True)
def hash_17_to_128(tokens, at, words, shifted):
    """Hash 17 to 128 bytes: pairs of 16 bytes from both ends inwards."""
    h = (words << U64(2)) * P64_1
    end = at + words
    if words > 8:
        if words > 16:
            if words > 24:
                h += mix16(tokens, at + U64(12), shifted, U64(12))
                h += mix16(tokens, end - U64(16), shifted, U64(14))
            h += mix16(tokens, at + U64(8), shifted, U64(8))
            h += mix16(tokens, end - U64(12), shifted, U64(10))
        h += mix16(tokens, at + U64(4), shifted, U64(4))
        h += mix16(tokens, end - U64(8), shifted, U64(6))
    h += mix16(tokens, at, shifted, U64(0))
    h += mix16(tokens, end - U64(4), shifted, U64(2))
    return avalanche(h)


@compiled(forceinline=True)
def mix16_unaligned(tokens, at, byte, seed):
    """Mix as mix16 does, with the default secret from any byte on and the seed applied here."""
    low = word_at(tokens, at) ^ (secret_at(SECRET, byte) + seed)
    high = word_at(tokens, at + U64(2)) ^ (secret_at(SECRET, byte + U64(8)) - seed)
    return fold_product(low, high)


@compiled()
def hash_129_to_240(tokens, at, words, shifted, seed):
    h = (words << U64(2)) * P64_1
    for i in range(8):
        h += mix16(tokens, at + U64(4 * i), shifted, U64(2 * i))
    h = avalanche(h)
    for i in range(8, words >> U64(2)):
        # The secret is reused from byte 3 on, so that no word of it meets two inputs alike.
        h += mix16_unaligned(tokens, at + U64(4 * i), U64(16 * (i - 8) + 3), seed)
    h += mix16_unaligned(tokens, at + words - U64(4), U64(119), seed)
    return avalanche(h)


@compiled(forceinline=True)
def add_stripe(lanes, tokens, at, secret, byte):
    """Add sixteen tokens to the eight lanes (uint64 [8])."""
    for lane in range(8):
        value = word_at(tokens, at + U64(2 * lane))
        keyed = value ^ secret_at(secret, byte + U64(8 * lane))
        lanes[lane ^ 1] += value
        lanes[lane] += (keyed & LOW32) * (keyed >> U64(32))


@compiled(forceinline=True)
def scramble_lanes(lanes, secret):
    """Scramble the eight lanes after a round of stripes."""
    for lane in range(8):
        h = lanes[lane]
        h ^= h >> U64(47)
        h ^= secret[16 + lane]
        lanes[lane] = h * P32_1


@compiled()
def hash_long(tokens, at, words, shifted):
    """Hash a message of more than 240 bytes."""
    lanes = lane_buffer()
    lanes[0], lanes[1], lanes[2], lanes[3] = P32_3, P64_1, P64_2, P64_3
    lanes[4], lanes[5], lanes[6], lanes[7] = P64_4, P32_2, P64_5, P32_1
    # The last stripe always ends with the message and is added apart, so it is left out here.
    stripes = (words - U64(1)) // U64(STRIPE_WORDS)
    for stripe in range(stripes):
        in_round = U64(stripe) % U64(STRIPES_PER_ROUND)
        start = at + U64(stripe) * U64(STRIPE_WORDS)
        add_stripe(lanes, tokens, start, shifted, in_round << U64(3))
        if in_round == U64(STRIPES_PER_ROUND - 1):
            scramble_lanes(lanes, shifted)
    add_stripe(lanes, tokens, at + words - U64(STRIPE_WORDS), shifted, U64(121))
    h = (words << U64(2)) * P64_1
    for k in range(4):
        low = lanes[2 * k] ^ secret_at(shifted, U64(11 + 16 * k))
        high = lanes[2 * k + 1] ^ secret_at(shifted, U64(19 + 16 * k))
        h += fold_product(low, high)
    return avalanche(h)


@compiled(forceinline=True)
def hash_window(tokens, at, words, seed, shifted):
    """Return XXH3-64 of `words` tokens from index `at`; `shifted` is derive_secret(seed)."""
    if words > 60:
        return hash_long(tokens, at, words, shifted)
    if words > 32:
        return hash_129_to_240(tokens, at, words, shifted, seed)
    if words > 4:
        return hash_17_to_128(tokens, at, words, shifted)
    if words > 2:
        last = word_at(tokens, at + words - U64(2))
        return hash_9_to_16(word_at(tokens, at), last, words << U64(2), seed)
    if words > 0:
        return hash_4_to_8(tokens, at, words, seed)
    return hash_empty(seed)


@compiled(f"void({TOKENS}, int64, int64, uint64, uint64[::1])")
def hash_windows(tokens, window, stride, seed, out):
    """Write XXH3-64 of tokens[i * stride : i * stride + window], as little-endian bytes, to out[i].

    tokens: uint32 [at least (len(out) - 1) * stride + window]; the caller guarantees it
    window, stride: in tokens, window >= 0, stride >= 0
    seed:   uint64, any value
    out:    uint64 [n_blocks]
    """
    shifted = secret_buffer()
    derive_secret(seed, shifted)
    for i in range(out.shape[0]):
        out[i] = hash_window(tokens, U64(i) * U64(stride), U64(window), seed, shifted)


@compiled(f"void({WORDS}, uint64[::1])")
def chain_hashes(block_hashes, out):
    """Chain hashes: out[0] = block_hashes[0]; out[i] = XXH3-64 of the 16 bytes out[i-1],
    block_hashes[i].

    block_hashes, out: uint64 [n_blocks]; the seed of the chain is always CHAIN_SEED
    """
    if block_hashes.shape[0] == 0:
        return
    out[0] = block_hashes[0]
    for i in range(1, block_hashes.shape[0]):
        out[i] = hash_9_to_16(out[i - 1], block_hashes[i], U64(16), CHAIN_SEED)
