/* The loops of codecs.py in C: what makes values of the parts of a chunk, and
 * XXH64. Called through ctypes (accel.py), so that nothing of Python is needed to
 * build it and Python's lock is free while it works. The formats are those of
 * store/FORMAT.md.
 *
 * What comes in is hostile. Each buffer comes with its size; nothing is read or
 * written outside it, and whatever is not as it must be is refused, by -1: numpy
 * then does the same work and says what is wrong. Nothing is kept between calls.
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if !defined(__BYTE_ORDER__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "for little endian machines; on others the package works with numpy alone"
#endif

/* With EB_PORTABLE even x86 takes the plain loops: tests hold them to the same bytes. */
#if defined(__x86_64__) && !defined(EB_PORTABLE)
#include <immintrin.h>
#define X86 1
#define AVX2 __attribute__((target("avx2,popcnt")))
#else
#define X86 0
#endif
#define INLINE static inline __attribute__((always_inline))

enum { PIECE = 4096 }; /* values put together at a time: they stay in the first cache */

/* How the values of a dtype are laid out; see "Taking apart" in FORMAT.md. */
struct layout {
    int width; /* bytes a value: 1, 2, 4 */
    int shift; /* bits of the top byte below the exponent: 0, 3, 4 */
};

/* A part of a chunk: at 0 if it is all zeros. */
struct part {
    const uint8_t *at;
    uint64_t size;
};

static const uint8_t zeros[2 * PIECE];

static uint16_t load16(const uint8_t *p) { uint16_t v; memcpy(&v, p, sizeof v); return v; }
static uint32_t load32(const uint8_t *p) { uint32_t v; memcpy(&v, p, sizeof v); return v; }
static uint64_t load64(const uint8_t *p) { uint64_t v; memcpy(&v, p, sizeof v); return v; }
static void store64(uint8_t *p, uint64_t v) { memcpy(p, &v, sizeof v); }

/* The bits of a byte as the lowest bits of eight bytes. */
INLINE uint64_t spread(uint8_t b) {
    /* Byte i keeps bit i of b, which adding 127 moves to its highest bit, unless it is there already. */
    uint64_t x = b * 0x0101010101010101ULL & 0x8040201008040201ULL;
    return (x + 0x007f7f7f7f7f7f7fULL) >> 7 & 0x0101010101010101ULL;
}

static int known(struct layout a) {
    return (a.width == 2 && (a.shift == 0 || a.shift == 3)) || (a.width == 4 && a.shift == 0) || (a.width == 1 && a.shift == 4);
}

/* Whether p is all zeros, or has as many bytes as it must have. */
static int fits(struct part p, uint64_t size) { return p.at == NULL || p.size == size; }

/* Joining. */

/* Puts n values together from their top bytes, low bytes and tails, and moves the sign from their end to their front. */
INLINE void join(uint8_t *out, size_t n, int width, const uint8_t *top, const uint8_t *low, const uint8_t *tail) {
    if (width == 1) {
        for (size_t i = 0; i < n; i++) out[i] = (uint8_t)(top[i] >> 1 | top[i] << 7);
    } else if (width == 2) {
        uint16_t *o = (uint16_t *)out;
        for (size_t i = 0; i < n; i++) {
            uint16_t v = (uint16_t)(top[i] << 8 | low[i]);
            o[i] = (uint16_t)(v >> 1 | v << 15);
        }
    } else {
        uint32_t *o = (uint32_t *)out;
        for (size_t i = 0; i < n; i++) {
            uint16_t v = (uint16_t)(top[i] << 8 | low[i]);
            o[i] = (uint32_t)(uint16_t)(v >> 1 | v << 15) << 16 | load16(tail + 2 * i);
        }
    }
}

/* Adds bit planes to the bytes of top, 8 values a byte of theirs: plane b becomes bit b. n is at most PIECE, top has room for
 * whole groups of eight. */
INLINE void unplane(uint8_t *top, size_t n, const struct part *planes, int count, size_t at) {
    for (int b = 0; b < count; b++) {
        if (planes[b].at == NULL) continue;
        const uint8_t *p = planes[b].at + at / 8;
        for (size_t i = 0; i < n; i += 8) store64(top + i, load64(top + i) | spread(p[i / 8]) << b);
    }
}

/* The exponents of n folded top bytes: shift is a constant wherever this is called. */
INLINE void unfold(uint8_t *top, size_t n, int shift, uint8_t base) {
    uint8_t mask = (uint8_t)(255 << shift);
    for (size_t i = 0; i < n; i++) {
        uint8_t f = top[i], flip = (uint8_t)-(f >> shift & 1);
        uint8_t d = (uint8_t)((f >> 1 ^ flip) & mask);
        top[i] = (uint8_t)(((d + base) & mask) | (f & ~mask));
    }
}

INLINE void finish(uint8_t *out, size_t n, struct layout a, uint8_t *top, int folded, uint8_t base, const uint8_t *low, const uint8_t *tail) {
    if (folded && a.shift == 0) unfold(top, n, 0, base);
    else if (folded && a.shift == 3) unfold(top, n, 3, base);
    else if (folded) unfold(top, n, 4, base);
    if (a.width == 1) join(out, n, 1, top, low, tail);
    else if (a.width == 2) join(out, n, 2, top, low, tail);
    else join(out, n, 4, top, low, tail);
}

/* What remains when the parts have been checked: planes onto the top bytes, or onto zeros where there are none. */
struct chunk {
    uint8_t *out;
    size_t n; /* values */
    struct layout a;
    uint8_t *top; /* all top bytes so far, with room for whole groups of eight; or 0 */
    const struct part *planes;
    int count, folded;
    uint8_t base;
    const uint8_t *low, *tail; /* or 0 */
};

#define CHUNK(unplane)                                                                                                 \
    uint8_t own[PIECE];                                                                                                \
    for (size_t at = 0; at < c->n; at += PIECE) {                                                                      \
        size_t n = c->n - at < PIECE ? c->n - at : PIECE;                                                              \
        uint8_t *top = c->top ? c->top + at : own;                                                                     \
        if (c->top == NULL) memset(own, 0, sizeof own);                                                                \
        unplane(top, n, c->planes, c->count, at);                                                                      \
        finish(c->out + at * (size_t)c->a.width, n, c->a, top, c->folded, c->base, c->low ? c->low + at : zeros,        \
               c->tail ? c->tail + 2 * at : zeros);                                                                    \
    }

static void chunk_plain(const struct chunk *c) { CHUNK(unplane) }

/* Merging the symbols of a tree. */

/* The symbols of one side of a node: count of them, or one that stands for all. */
struct side {
    const uint8_t *at;
    size_t step; /* all ones, or 0 for one symbol, of which eight stand at at */
    uint8_t same[8];
};

/* Fills out with m symbols: those of a at the zeros of bits, those of b at its ones. out has room for whole groups of eight;
 * of a and b, eight bytes more than they have may be read. */
INLINE void merge(uint8_t *out, size_t m, const uint8_t *bits, const struct side *a, const struct side *b) {
    const uint8_t *from[2] = {a->at, b->at};
    const size_t step[2] = {a->step & 1, b->step & 1};
    for (size_t i = 0; i < m; i++) {
        int k = bits[i / 8] >> (i % 8) & 1;
        out[i] = *from[k];
        from[k] += step[k];
    }
}

static void merge_plain(uint8_t *out, size_t m, const uint8_t *bits, const struct side *a, const struct side *b) {
    merge(out, m, bits, a, b);
}

#if X86
AVX2 INLINE void unplane_avx2(uint8_t *top, size_t n, const struct part *planes, int count, size_t at) {
    const __m256i bit = _mm256_set1_epi64x((long long)0x8040201008040201ULL);
    const __m256i which = _mm256_setr_epi64x(0, 0x0101010101010101LL, 0x0202020202020202LL, 0x0303030303030303LL);
    size_t i = 0;
    for (; i + 32 <= n; i += 32) {
        __m256i acc = _mm256_setzero_si256();
        for (int b = count - 1; b >= 0; b--) {
            acc = _mm256_add_epi8(acc, acc);
            if (planes[b].at == NULL) continue;
            __m256i x = _mm256_shuffle_epi8(_mm256_set1_epi32((int)load32(planes[b].at + (at + i) / 8)), which);
            acc = _mm256_sub_epi8(acc, _mm256_cmpeq_epi8(_mm256_and_si256(x, bit), bit));
        }
        __m256i *to = (__m256i *)(top + i);
        _mm256_storeu_si256(to, _mm256_or_si256(_mm256_loadu_si256(to), acc));
    }
    unplane(top + i, n - i, planes, count, at + i);
}

AVX2 static void chunk_avx2(const struct chunk *c) { CHUNK(unplane_avx2) }

/* For each byte of bits, where the eight symbols come from: 0 to 7 are the next of a, 8 to 15 those of b. */
static void places(uint64_t table[256]) {
    for (int k = 0; k < 256; k++) {
        uint64_t v = 0, from[2] = {0, 8};
        for (int i = 0; i < 8; i++) v |= from[k >> i & 1]++ << 8 * i;
        table[k] = v;
    }
}

AVX2 static void merge_avx2(uint8_t *out, size_t m, const uint8_t *bits, const struct side *a, const struct side *b, const uint64_t *table) {
    const uint8_t *pa = a->at, *pb = b->at;
    for (size_t i = 0; i < m; i += 8) {
        uint8_t k = bits[i / 8];
        __m128i both = _mm_set_epi64x((long long)load64(pb), (long long)load64(pa));
        __m128i got = _mm_shuffle_epi8(both, _mm_cvtsi64_si128((long long)table[k]));
        store64(out + i, (uint64_t)_mm_cvtsi128_si64(got));
        size_t ones = (size_t)__builtin_popcount(k);
        pa += (8 - ones) & a->step;
        pb += ones & b->step;
    }
}
#endif

static int fast(void) {
#if X86
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("popcnt");
#else
    return 0;
#endif
}

static void chunk(const struct chunk *c) {
#if X86
    if (fast()) {
        chunk_avx2(c);
        return;
    }
#endif
    chunk_plain(c);
}

/* The low bytes and tails that follow the planes: parts[0] and parts[1]. */
static int halves(struct chunk *c, const struct part *parts) {
    if (((uintptr_t)c->out & ((uintptr_t)c->a.width - 1)) != 0) return -1;
    if (!fits(parts[0], c->a.width > 1 ? c->n : 0) || !fits(parts[1], c->a.width == 4 ? 2 * (uint64_t)c->n : 0)) return -1;
    c->low = parts[0].at;
    c->tail = parts[1].at;
    return 0;
}

/* The values of an lz4-planes chunk. parts: planes 0 to 7, low bytes, tails. */
int eb_planes(uint8_t *out, uint64_t size, int width, int shift, int base, const struct part parts[10]) {
    struct chunk c = {.out = out, .a = {width, shift}, .planes = parts, .count = 8, .folded = 1, .base = (uint8_t)base};
    if (!known(c.a) || size % (uint64_t)width != 0) return -1;
    c.n = (size_t)(size / (uint64_t)width);
    for (int b = 0; b < 8; b++)
        if (!fits(parts[b], (c.n + 7) / 8)) return -1;
    if (halves(&c, parts + 8) != 0) return -1;
    chunk(&c);
    return 0;
}

/* Trees. */

struct tree {
    const uint8_t *at, *end;
    uint8_t mask; /* the bits that a symbol may have */
    int nodes, leaves, literals;
    uint8_t seen[256];
    uint64_t table[256];
    int fast;
};

static size_t ones(const uint8_t *bits, size_t n) {
    size_t sum = 0, i = 0;
    for (; i + 8 <= n; i += 8) {
        uint64_t x = load64(bits + i);
        x -= x >> 1 & 0x5555555555555555ULL;
        x = (x & 0x3333333333333333ULL) + (x >> 2 & 0x3333333333333333ULL);
        x = (x + (x >> 4)) & 0x0f0f0f0f0f0f0f0fULL;
        sum += (size_t)(x * 0x0101010101010101ULL >> 56);
    }
    for (; i < n; i++) sum += (size_t)__builtin_popcount(bits[i]);
    return sum;
}

/* A leaf, if that is what comes next: 1, 0 if not, -1 if it may not be. */
static int leaf(struct tree *t, uint8_t *symbol) {
    if (t->at == t->end || *t->at != 1) return 0;
    if (t->end - t->at < 2) return -1;
    *symbol = t->at[1];
    t->at += 2;
    if (t->seen[*symbol] || (*symbol & ~t->mask) || t->leaves == 31) return -1;
    t->seen[*symbol] = 1;
    t->leaves++;
    return 1;
}

static int literals(struct tree *t, uint8_t *out, size_t m) {
    if (t->literals || (size_t)(t->end - t->at) < m) return -1;
    t->literals = 1;
    uint8_t all = 0;
    for (size_t i = 0; i < m; i++) all |= t->at[i];
    if (all & ~t->mask) return -1;
    memcpy(out, t->at, m);
    t->at += m;
    return 0;
}

/* Reads the tree that comes next, of m symbols, to out. free is as much room again, which is overwritten: a node has the symbols
 * of its sides written there, and theirs are written to out, since that is filled only when they are merged. Both have eight
 * bytes more; what lies after them is not needed yet, because trees are read from left to right. top: the whole tree. */
static int subtree(struct tree *t, uint8_t *out, uint8_t *free, size_t m, int top) {
    uint8_t symbol;
    int is = leaf(t, &symbol);
    if (is < 0) return -1;
    if (is) {
        memset(out, symbol, m);
        return 0;
    }
    if (t->at == t->end) return -1;
    uint8_t kind = *t->at++;
    if (kind == 2 && !top) return literals(t, out, m);
    size_t size = (m + 7) / 8;
    if (kind != 0 || t->nodes == 31 || (size_t)(t->end - t->at) < size) return -1;
    t->nodes++;
    const uint8_t *bits = t->at;
    t->at += size;
    if (m % 8 && bits[size - 1] >> m % 8) return -1;
    size_t second = ones(bits, size), begin[2] = {0, m - second}, count[2] = {m - second, second};
    struct side sides[2];
    for (int k = 0; k < 2; k++) {
        struct side *s = &sides[k];
        is = leaf(t, &symbol);
        if (is < 0) return -1;
        if (is) memset(s->same, symbol, sizeof s->same);
        else if (subtree(t, free + begin[k], out + begin[k], count[k], 0) != 0) return -1;
        s->at = is ? s->same : free + begin[k];
        s->step = is ? 0 : ~(size_t)0;
    }
#if X86
    if (t->fast) {
        merge_avx2(out, m, bits, &sides[0], &sides[1], t->table);
        return 0;
    }
#endif
    merge_plain(out, m, bits, &sides[0], &sides[1]);
    return 0;
}

/* The values of a dense chunk. parts: planes 0 to 3 (of which shift are used), low bytes, tails, the tree. room: twice the number
 * of values, and 32 bytes. */
int eb_dense(uint8_t *out, uint64_t size, int width, int shift, const struct part parts[7], uint8_t *room, uint64_t room_size) {
    struct chunk c = {.out = out, .a = {width, shift}, .top = room, .planes = parts, .count = shift};
    if (!known(c.a) || size % (uint64_t)width != 0 || parts[6].at == NULL) return -1;
    c.n = (size_t)(size / (uint64_t)width);
    if (room_size < 32 || (room_size - 32) / 2 < c.n) return -1;
    for (int b = 0; b < shift; b++)
        if (!fits(parts[b], (c.n + 7) / 8)) return -1;
    if (halves(&c, parts + 4) != 0) return -1;
    struct tree t = {.at = parts[6].at, .end = parts[6].at + parts[6].size, .mask = (uint8_t)(255 << shift), .fast = fast()};
#if X86
    places(t.table);
#endif
    if (subtree(&t, room, room + c.n + 16, c.n, 1) != 0 || t.at != t.end) return -1;
    chunk(&c);
    return 0;
}

/* XXH64 with seed 0. */

static const uint64_t P1 = 0x9E3779B185EBCA87ULL, P2 = 0xC2B2AE3D27D4EB4FULL, P3 = 0x165667B19E3779F9ULL,
                      P4 = 0x85EBCA77C2B2AE63ULL, P5 = 0x27D4EB2F165667C5ULL;

static uint64_t rotate(uint64_t v, int n) { return v << n | v >> (64 - n); }
static uint64_t lane(uint64_t acc, uint64_t v) { return rotate(acc + v * P2, 31) * P1; }

/* Takes blocks of 32 bytes into v, which begins as P1 + P2, P2, 0, -P1. What follows the last is not read. */
void eb_xxh64_blocks(uint64_t v[4], const uint8_t *p, uint64_t size) {
    for (const uint8_t *end = p + size; end - p >= 32; p += 32)
        for (int i = 0; i < 4; i++) v[i] = lane(v[i], load64(p + 8 * i));
}

/* The hash of total bytes: those that v has seen, and the rest, fewer than 32. */
uint64_t eb_xxh64_end(const uint64_t v[4], uint64_t total, const uint8_t *p, uint64_t rest) {
    uint64_t h = P5;
    if (total >= 32) {
        h = rotate(v[0], 1) + rotate(v[1], 7) + rotate(v[2], 12) + rotate(v[3], 18);
        for (int i = 0; i < 4; i++) h = (h ^ lane(0, v[i])) * P1 + P4;
    }
    h += total;
    const uint8_t *end = p + rest;
    for (; end - p >= 8; p += 8) h = rotate(h ^ lane(0, load64(p)), 27) * P1 + P4;
    for (; end - p >= 4; p += 4) h = rotate(h ^ load32(p) * P1, 23) * P2 + P3;
    for (; p < end; p++) h = rotate(h ^ *p * P5, 11) * P1;
    h = (h ^ h >> 33) * P2;
    h = (h ^ h >> 29) * P3;
    return h ^ h >> 32;
}

uint64_t eb_xxh64(const uint8_t *p, uint64_t size) {
    uint64_t v[4] = {P1 + P2, P2, 0, 0 - P1};
    eb_xxh64_blocks(v, p, size);
    return eb_xxh64_end(v, size, p + (size & ~31ULL), size & 31);
}

#include "chunks.h"

/* Changes with the functions above: accel.py uses no other. */
int eb_version(void) { return 3; }
