/* Rows of ids by each table's policy, and FP32 rows as INT8 tables store them, for AVX2.

   Both give what the NumPy code in backends/ids/ and backends/dlrm/stored_rows.py gives;
   they are proven against it before they are used. */

#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

enum { REJECT = 0, MURMUR3 = 1, MODULO = 2, ZERO = 3, DEFAULT_ROW = 4, CLAMP = 5 };
enum { STEP = 256, LANES = 8, BAGS = 16, SCALE_BIAS_BYTES = 4, LARGEST = 255 };
#define FAST __attribute__((target("avx2,f16c")))

int narsil_rows_run_here(void) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
}

/* number modulo rows, never negative. The reciprocal, (2**64 - 1) / rows, is rounded down, so the
   quotient may be too small by one or two, and the rest too large by as many rows. */
static inline int64_t modulo(int64_t number, uint64_t rows, uint64_t reciprocal) {
    const uint64_t negative = (uint64_t)(number >> 63);
    const uint64_t size = (uint64_t)number ^ negative; /* of -n: n - 1 */
    const uint64_t quotient = (uint64_t)(((unsigned __int128)size * reciprocal) >> 64);
    uint64_t rest = size - quotient * rows;
    rest = rest >= rows ? rest - rows : rest;
    rest = rest >= rows ? rest - rows : rest;
    return (int64_t)(negative ? rows - 1 - rest : rest);
}

static inline uint32_t rotated(uint32_t word, int bits) {
    return word << bits | word >> (32 - bits);
}

/* MurmurHash3_x86_32, by Austin Appleby, in the public domain, of an id's 8 bytes. */
static inline __attribute__((always_inline)) uint32_t murmur3(uint32_t low, uint32_t high,
                                                              uint32_t seed) {
    uint32_t state = seed ^ rotated(low * 0xCC9E2D51u, 15) * 0x1B873593u;
    state = rotated(state, 13) * 5 + 0xE6546B64u;
    state ^= rotated(high * 0xCC9E2D51u, 15) * 0x1B873593u;
    state = (rotated(state, 13) * 5 + 0xE6546B64u) ^ 8;
    state = (state ^ state >> 16) * 0x85EBCA6Bu;
    state = (state ^ state >> 13) * 0xC2B2AE35u;
    return state ^ state >> 16;
}

/* The hashes are signed 32-bit numbers: where a table has no more rows, neither do the rests.
   Halves of ids lie apart so that the loops are of one width each, which compilers need. */
FAST static void murmur3_rows(int64_t *ids, int64_t count, uint32_t seed, uint32_t rows) {
    const uint32_t reciprocal = UINT32_MAX / rows;
    uint32_t low[STEP], high[STEP], quotients[STEP];
    for (int64_t start = 0; start < count; start += STEP, ids += STEP) {
        const int64_t here = count - start < STEP ? count - start : STEP;
        for (int64_t at = 0; at < here; at++) {
            low[at] = (uint32_t)(uint64_t)ids[at];
            high[at] = (uint32_t)((uint64_t)ids[at] >> 32);
        }
        for (int64_t at = 0; at < here; at++) {
            const uint32_t hash = murmur3(low[at], high[at], seed);
            high[at] = (uint32_t)((int32_t)hash >> 31);
            low[at] = hash ^ high[at]; /* of -n: n - 1 */
        }
        for (int64_t at = 0; at < here; at++)
            quotients[at] = (uint32_t)((uint64_t)low[at] * reciprocal >> 32);
        for (int64_t at = 0; at < here; at++) {
            uint32_t rest = low[at] - quotients[at] * rows;
            rest = rest >= rows ? rest - rows : rest;
            rest = rest >= rows ? rest - rows : rest;
            low[at] = (rest ^ high[at]) + (high[at] & rows);
        }
        for (int64_t at = 0; at < here; at++) ids[at] = low[at];
    }
}

/* One table: how many rows it has, and what becomes of an id that has none. */
typedef struct {
    int64_t rows;
    int64_t row; /* of DEFAULT_ROW */
    uint32_t seed;
    uint32_t policy;
} Table;

static void hash_ids(int64_t *ids, int64_t count, const Table *table) {
    const uint64_t limit = (uint64_t)table->rows;
    const uint64_t reciprocal = UINT64_MAX / limit;
    if (table->policy == MURMUR3 && limit <= INT32_MAX)
        murmur3_rows(ids, count, table->seed, (uint32_t)limit);
    else if (table->policy == MURMUR3)
        for (int64_t at = 0; at < count; at++)
            ids[at] = modulo((int32_t)murmur3((uint32_t)ids[at],
                                              (uint32_t)((uint64_t)ids[at] >> 32), table->seed),
                             limit, reciprocal);
    else
        for (int64_t at = 0; at < count; at++)
            ids[at] = modulo((int64_t)((uint64_t)ids[at] + table->seed), limit, reciprocal);
}

FAST static int64_t count_outside(const int64_t *ids, int64_t count, int64_t limit) {
    int64_t outside = 0;
    for (int64_t at = 0; at < count; at++) outside += (ids[at] < 0) | (ids[at] >= limit);
    return outside;
}

FAST static void replace(int64_t *ids, int64_t count, const Table *table) {
    const int64_t below = table->policy == CLAMP ? 0 : table->row;
    const int64_t above = table->policy == CLAMP ? table->rows - 1 : table->row;
    for (int64_t at = 0; at < count; at++)
        ids[at] = ids[at] < 0 ? below : ids[at] >= table->rows ? above : ids[at];
}

/* Leave out what has no row, and make the bags that it was in as much shorter. Most bags have
   nothing to leave out: those are moved, some at a time. */
FAST static int64_t leave_out(int64_t *ids, int64_t *bags, int64_t columns, int64_t limit) {
    int64_t *kept = ids;
    for (int64_t first = 0; first < columns; first += BAGS) {
        const int64_t end = columns - first < BAGS ? columns : first + BAGS;
        int64_t count = 0;
        for (int64_t bag = first; bag < end; bag++) count += bags[bag];
        if (!count_outside(ids, count, limit)) {
            if (kept != ids) memmove(kept, ids, (size_t)count * sizeof *ids);
            kept += count;
            ids += count;
            continue;
        }
        for (int64_t bag = first; bag < end; bag++) {
            int64_t left = bags[bag];
            for (int64_t id = bags[bag]; id > 0; id--, ids++) {
                const int64_t outside = (uint64_t)*ids >= (uint64_t)limit;
                *kept = *ids;
                kept += !outside;
                left -= outside;
            }
            bags[bag] = left;
        }
    }
    return kept - ids;
}

/* Write how many ids each feature has; return whether bags mean size ids, and none a negative
   number. What lengths above size add up to wraps around, and is no matter. */
FAST static int count_ids(const int64_t *bags, int64_t columns, int64_t features, int64_t size,
                     int64_t *counts) {
    int64_t all = 0;
    for (int64_t feature = 0; feature < features; feature++, bags += columns) {
        uint64_t count = 0;
        int64_t wrong = 0;
        for (int64_t bag = 0; bag < columns; bag++) {
            wrong |= (bags[bag] < 0) | (bags[bag] > size);
            count += (uint64_t)bags[bag];
        }
        /* So many lengths of at most size add up to no more than what 64 bits hold. */
        if (wrong || count > (uint64_t)size) return 0;
        all += counts[feature] = (int64_t)count;
    }
    return all == size;
}

/* Make rows of size ids, those of each feature following each other; bags has the lengths of its
   columns bags, which become shorter where a table leaves ids out. counts says how many ids each
   feature had, outside how many of them had no row where they are not hashed. Return how many ids
   are left, -1 if a table refuses one or the bags do not fit the ids. */
int64_t narsil_settle_ids(int64_t *ids, int64_t size, int64_t *bags, int64_t columns,
                          int64_t features, const Table *tables, int64_t *counts,
                          int64_t *outside) {
    if (!count_ids(bags, columns, features, size, counts)) return -1;
    int64_t *const begin = ids, *to = ids;
    for (int64_t feature = 0; feature < features; feature++) {
        const int64_t count = counts[feature];
        const Table *table = tables + feature;
        int64_t kept = count;
        if (to != ids) memmove(to, ids, (size_t)count * sizeof *ids);
        if (table->policy == MURMUR3 || table->policy == MODULO)
            hash_ids(to, count, table);
        else if ((outside[feature] = count_outside(to, count, table->rows))) {
            if (table->policy == REJECT) return -1;
            if (table->policy == ZERO)
                kept += leave_out(to, bags + feature * columns, columns, table->rows);
            else
                replace(to, count, table);
        }
        ids += count;
        to += kept;
    }
    return to - begin;
}

FAST static inline float across(__m256 values, int largest) {
    float kept[LANES];
    _mm256_storeu_ps(kept, values);
    float found = kept[0];
    for (int at = 1; at < LANES; at++)
        if (largest ? kept[at] > found : kept[at] < found) found = kept[at];
    return found;
}

FAST static inline void find_bounds(const float *row, int64_t dim, float *smallest,
                                    float *largest) {
    __m256 low = _mm256_set1_ps(row[0]), high = low;
    int64_t at = 0;
    for (; at + LANES <= dim; at += LANES) {
        const __m256 values = _mm256_loadu_ps(row + at);
        low = _mm256_min_ps(low, values);
        high = _mm256_max_ps(high, values);
    }
    *smallest = across(low, 0);
    *largest = across(high, 1);
    for (; at < dim; at++) {
        if (row[at] < *smallest) *smallest = row[at];
        if (row[at] > *largest) *largest = row[at];
    }
}

static inline int is_finite(uint16_t half) { return (half & 0x7C00) != 0x7C00; }

FAST static inline void quantise(const float *row, int64_t dim, float low, float inverse,
                                 uint8_t *out) {
    const __m256 lows = _mm256_set1_ps(low), inverses = _mm256_set1_ps(inverse);
    const __m256 zero = _mm256_setzero_ps(), most = _mm256_set1_ps(LARGEST);
    int64_t at = 0;
    for (; at + LANES <= dim; at += LANES) {
        __m256 numbers = _mm256_mul_ps(_mm256_sub_ps(_mm256_loadu_ps(row + at), lows), inverses);
        numbers = _mm256_min_ps(_mm256_max_ps(numbers, zero), most);
        const __m256i whole = _mm256_cvtps_epi32(numbers); /* halves to even, as everywhere */
        const __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(whole),
                                               _mm256_extracti128_si256(whole, 1));
        _mm_storel_epi64((__m128i *)(out + at), _mm_packus_epi16(words, words));
    }
    for (; at < dim; at++) {
        const float number = rintf((row[at] - low) * inverse);
        out[at] = (uint8_t)(number < 0 ? 0 : number > LARGEST ? LARGEST : number);
    }
}

/* Write count rows of dim finite values, each stride bytes from the last; what lies between is
   left alone. Return how many were written before one whose bounds do not fit into FP16. */
FAST int64_t narsil_quantise_int8(const float *values, int64_t count, int64_t dim, uint8_t *out,
                                  int64_t stride) {
    for (int64_t at = 0; at < count; at++, values += dim, out += stride) {
        float smallest, largest;
        find_bounds(values, dim, &smallest, &largest);
        const uint16_t bias = _cvtss_sh(smallest + 0.0f, _MM_FROUND_TO_NEAREST_INT);
        const float low = _cvtsh_ss(bias), spread = largest - low;
        uint16_t scale = _cvtss_sh(spread == 0 ? 1.0f : spread / LARGEST,
                                   _MM_FROUND_TO_NEAREST_INT);
        if (!is_finite(bias) || !is_finite(scale)) return at;
        float inverse = 1.0f / _cvtsh_ss(scale);
        if (isinf(inverse)) { /* too small a spread for FP16: every number becomes 0 */
            inverse = 1.0f;
            scale = _cvtss_sh(1.0f, _MM_FROUND_TO_NEAREST_INT);
        }
        memcpy(out, &scale, sizeof scale);
        memcpy(out + sizeof scale, &bias, sizeof bias);
        quantise(values, dim, low, inverse, out + SCALE_BIAS_BYTES);
    }
    return count;
}
