/* A whole DLRM forward on the calling thread, for AVX2 or AVX-512, whichever the caller names.

   Nothing here keeps state: a lane's memory is its scratch. Inputs have been checked before. */

#include "forward.h"

#include <immintrin.h>
#include <math.h>
#include <string.h>

enum { AVX2 = 1, AVX512 = 2 };
enum { INT8 = 0, FP16 = 1, FP32 = 2, INT4 = 3 };
enum { START, STRIDE, KIND, MEAN, PLACE, FIELDS };
/* Of few rows: panels of so many vectors, inputs asked for ahead of their turn, the most inputs. */
enum { TRIPLE_BYTES = 3, WIDE_VECTORS = 8, AHEAD = 2, MOST_INPUTS = 4096 };
enum { LINE_BYTES = 64, SCALE_BIAS_BYTES = 4, ROWS_AHEAD = 2, INPUTS_AHEAD = 16 };
/* Beside a strip's list of inputs: how many, and what is written past its end. */
enum { USED_SPARE = 1 + 16 };
enum { TILE_ROWS = 6, TILE_VECTORS = 4 };

#define JOIN_(left, right) left##_##right
#define JOIN(left, right) JOIN_(left, right)
#define NAME(name) JOIN(name, LEVEL)
#define INLINE static inline __attribute__((always_inline, target(TARGET)))
#define OUTLINE static __attribute__((noinline, target(TARGET)))
#define UNROLL _Pragma("GCC unroll 32")

static inline int64_t id_at(const batch *b, int64_t position) {
    return b->wide_ids ? ((const int64_t *)b->ids)[position] : ((const int32_t *)b->ids)[position];
}

/* How many rows of a layer are computed together. The fewer, the more inputs are 0 in all of them, and
   the more weights are read for each product: Zen 4's caches are fast enough for four (decision
   0064). */
static int64_t strip_rows(int level) {
    return level == AVX512 && __builtin_cpu_is("amd") ? 4 : TILE_ROWS;
}

/* Where in memory the stored row of an id starts. */
static inline const uint8_t *stored_row(const model *m, const int64_t *table, int64_t id) {
    return m->storage + table[START] + id * table[STRIDE];
}

/* Ask for the stored row of each bag's first id: by far most bags have one. The cursors of this
   look-ahead are moved on to the next batch row. */
static void fetch_ahead(const model *m, const batch *b, int64_t row, int64_t *cursors) {
    for (int64_t feature = 0; feature < m->features; feature++) {
        const int64_t length = b->lengths[feature * b->rows + row];
        const int64_t *table = m->tables + feature * FIELDS;
        if (length > 0) {
            const uint8_t *start = stored_row(m, table, id_at(b, cursors[feature]));
            const uint8_t *const end = start + table[STRIDE];
            for (start -= (uintptr_t)start % LINE_BYTES; start < end; start += LINE_BYTES)
                __builtin_prefetch(start);
        }
        cursors[feature] += length;
    }
}

/* Whether a row has the dense values (feature -1) or the bag of a feature of the row before. */
static inline int repeats(const model *m, const batch *b, int64_t row, int64_t feature) {
    if (!b->pattern_of_row) return 0;
    return b->patterns[b->pattern_of_row[row] * (m->features + 1) + feature + 1];
}

/* Where each feature's ids start among all. */
static void start_cursors(const model *m, const batch *b, int64_t *cursors) {
    int64_t total = 0;
    for (int64_t feature = 0; feature < m->features; feature++) {
        cursors[feature] = total;
        for (int64_t row = 0; row < b->rows; row++) total += b->lengths[feature * b->rows + row];
    }
}

/* Two codes a byte, the first one in the low bits, as a byte each. */
static inline __m128i nibbles(const uint8_t *at, size_t bytes) {
    uint64_t packed = 0;
    memcpy(&packed, at, bytes);
    const __m128i low = _mm_and_si128(_mm_cvtsi64_si128((int64_t)packed), _mm_set1_epi8(15));
    const __m128i high = _mm_and_si128(_mm_cvtsi64_si128((int64_t)(packed >> 4)), _mm_set1_epi8(15));
    return _mm_unpacklo_epi8(low, high);
}

/* Four whole numbers of three bytes in 12, each to the upper three bytes of four. */
static const int8_t UNPACK[16] = {-1, 0, 1, 2, -1, 3, 4, 5, -1, 6, 7, 8, -1, 9, 10, 11};
static const int32_t BY_TWELVE[16] = {0, 1, 2, 0, 3, 4, 5, 0, 6, 7, 8, 0, 9, 10, 11, 0};

/* Whether products of all values with whole numbers, which are scaled after the sum only, add up to
   what a float holds. NaN is no matter: it stays in its row. */
static int are_small(int64_t rows, int64_t inputs, const float *x, int64_t x_stride) {
    const float most = 0x1p96f / (float)inputs;
    int large = 0;
    for (int64_t row = 0; row < rows; row++)
        for (int64_t input = 0; input < inputs; input++)
            large |= fabsf(x[row * x_stride + input]) > most;
    return !large;
}

/* Write the places of the bits of `some`, counted from `input`; return how many. */
static inline int32_t write_used_avx2(int32_t input, uint32_t some, int32_t *used) {
    int32_t count = 0;
    for (int at = 0; at < 8; at++) {
        used[count] = input + at;
        count += (int32_t)(some >> at & 1);
    }
    return count;
}

static inline __attribute__((target("avx512f"))) int32_t write_used_avx512(int32_t input,
                                                                          uint32_t some,
                                                                          int32_t *used) {
    const __m512i ascending =
        _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i places = _mm512_add_epi32(_mm512_set1_epi32(input), ascending);
    _mm512_storeu_si512(used, _mm512_maskz_compress_epi32((__mmask16)some, places));
    return __builtin_popcount(some);
}

/* Write the first `count` of four floats; there are no others to write over. */
static inline void store_avx2(float *out, int64_t count, __m128 four) {
    float each[4];
    if (count == 4) {
        _mm_storeu_ps(out, four);
        return;
    }
    _mm_storeu_ps(each, four);
    for (int64_t at = 0; at < count; at++) out[at] = each[at];
}

static inline __attribute__((target("avx512f,avx512vl"))) void store_avx512(float *out,
                                                                            int64_t count,
                                                                            __m128 four) {
    _mm_mask_storeu_ps(out, (__mmask8)((1 << count) - 1), four);
}

/* FEW_ROWS: of so few, reading the weights is the work, and fewer bytes of them pay for unpacking. */
#define LEVEL avx2
#define FEW_ROWS 1
#define TARGET "avx2,fma,f16c"
#define WIDE_ROWS 2
#define FEW_SUMS 6
#define LANES 8
#define VECTOR __m256
#define LOAD _mm256_loadu_ps
#define STORE _mm256_storeu_ps
#define SPREAD _mm256_set1_ps
#define MULTIPLY_ADD _mm256_fmadd_ps
#define ADD _mm256_add_ps
#define MAXIMUM _mm256_max_ps
#define ZERO _mm256_setzero_ps()
#define FROM_BYTES(at) \
    _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(at))))
#define FROM_NIBBLES(at) _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(nibbles(at, 4)))
#define FROM_HALVES(at) _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(at)))
#define FROM_TRIPLES(at) \
    _mm256_cvtepi32_ps(_mm256_shuffle_epi8( \
        _mm256_inserti128_si256( \
            _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)(at))), \
            _mm_loadu_si128((const __m128i *)((at) + 12)), 1), \
        _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)UNPACK))))
#define HALVED(v) (v)
#define INTEGERS __m256i
#define LOAD_BITS(at) _mm256_loadu_si256((const __m256i *)(at))
#define EITHER _mm256_or_si256
#define NOT_ZERO(v) \
    (~(uint32_t)_mm256_movemask_ps( \
         _mm256_castsi256_ps(_mm256_cmpeq_epi32(v, _mm256_setzero_si256()))) & 255)
#include "level.h"

#define LEVEL avx512
#define FEW_ROWS 3
#define TARGET "avx512f,avx512dq,avx512bw,avx512vl,avx2,fma,f16c"
#define WIDE_ROWS 6
#define FEW_SUMS 4
#define LANES 16
#define VECTOR __m512
#define LOAD _mm512_loadu_ps
#define STORE _mm512_storeu_ps
#define SPREAD _mm512_set1_ps
#define MULTIPLY_ADD _mm512_fmadd_ps
#define ADD _mm512_add_ps
#define MAXIMUM _mm512_max_ps
#define ZERO _mm512_setzero_ps()
#define FROM_BYTES(at) \
    _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(at))))
#define FROM_NIBBLES(at) _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(nibbles(at, 8)))
#define FROM_HALVES(at) _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(at)))
#define FROM_TRIPLES(at) \
    _mm512_cvtepi32_ps(_mm512_shuffle_epi8( \
        _mm512_permutexvar_epi32(_mm512_loadu_si512(BY_TWELVE), _mm512_loadu_si512(at)), \
        _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)UNPACK))))
#define INTEGERS __m512i
#define LOAD_BITS(at) _mm512_loadu_si512(at)
#define EITHER _mm512_or_si512
#define NOT_ZERO(v) ((uint32_t)_mm512_test_epi32_mask(v, v))
#define HALVED(v) _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1))
#include "level.h"

int narsil_best_level(void) {
    __builtin_cpu_init();
    const int avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                     __builtin_cpu_supports("f16c");
    const int avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                       __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
    return avx2 ? (avx512 ? AVX512 : AVX2) : 0;
}

int narsil_panel_columns(int level) { return level == AVX512 ? 32 : 16; }

int64_t narsil_used_size(int level, const model *m, int64_t block_rows) {
    const int64_t strips = (block_rows + strip_rows(level) - 1) / strip_rows(level);
    int64_t most = 0;
    for (int64_t number = 0; number < m->dense_layers; number++)
        if (m->dense[number].inputs > most) most = m->dense[number].inputs;
    for (int64_t number = 0; number < m->over_layers; number++)
        if (m->over[number].inputs > most) most = m->over[number].inputs;
    return strips * (most + USED_SPARE);
}

void narsil_forward(int level, const model *m, const scratch *s, const batch *b, float *scores) {
    (level == AVX512 ? forward_avx512 : forward_avx2)(m, s, b, scores);
}
