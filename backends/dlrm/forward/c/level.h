/* The forward for one instruction set; forward.c includes this once for each, with its macros. */

#include "layers.h"

/* Add a stored row to out, or write it there if it is the first of its bag. */
INLINE void NAME(add_row)(const uint8_t *row, int64_t kind, int64_t dim, int first, float *out) {
    float scale = 1, shift = 0;
    if (kind == INT8 || kind == INT4) {
        uint16_t halves[2];
        memcpy(halves, row, SCALE_BIAS_BYTES);
        scale = _cvtsh_ss(halves[0]), shift = _cvtsh_ss(halves[1]);
        row += SCALE_BIAS_BYTES;
    }
    const VECTOR scales = SPREAD(scale), shifts = SPREAD(shift);
    int64_t column = 0;
    for (; column + LANES <= dim; column += LANES) {
        VECTOR value;
        if (kind == INT8)
            value = MULTIPLY_ADD(scales, FROM_BYTES(row + column), shifts);
        else if (kind == INT4)
            value = MULTIPLY_ADD(scales, FROM_NIBBLES(row + column / 2), shifts);
        else
            value = kind == FP16 ? FROM_HALVES(row + 2 * column)
                                 : LOAD((const float *)(row + 4 * column));
        STORE(out + column, first ? value : ADD(LOAD(out + column), value));
    }
    for (; column < dim; column++) {
        float value;
        uint16_t half;
        if (kind == INT8) {
            value = scale * (float)row[column] + shift;
        } else if (kind == INT4) {
            value = scale * (float)(row[column / 2] >> 4 * (column & 1) & 15) + shift;
        } else if (kind == FP16) {
            memcpy(&half, row + 2 * column, sizeof half);
            value = _cvtsh_ss(half);
        } else {
            memcpy(&value, row + 4 * column, sizeof value);
        }
        out[column] = first ? value : out[column] + value;
    }
}

/* Look up and pool every bag of one batch row; the cursors are moved on to the next. The vector of
   a bag that is repeated is there already, from the row before. */
OUTLINE void NAME(pool)(const model *m, const scratch *s, const batch *b, int64_t row,
                        int64_t *cursors) {
    for (int64_t feature = 0; feature < m->features; feature++) {
        const int64_t *table = m->tables + feature * FIELDS;
        const int64_t length = b->lengths[feature * b->rows + row], start = cursors[feature];
        float *out = s->vectors + table[PLACE] * s->vector_stride;
        cursors[feature] = start + length;
        s->repeated[table[PLACE]] = repeats(m, b, row, feature);
        if (s->repeated[table[PLACE]]) continue;
        if (length == 0) memset(out, 0, (size_t)m->dim * sizeof(float));
        for (int64_t number = 0; number < length; number++) {
            const uint8_t *stored = stored_row(m, table, id_at(b, start + number));
            switch (table[KIND]) {
                case INT8: NAME(add_row)(stored, INT8, m->dim, number == 0, out); break;
                case INT4: NAME(add_row)(stored, INT4, m->dim, number == 0, out); break;
                case FP16: NAME(add_row)(stored, FP16, m->dim, number == 0, out); break;
                default: NAME(add_row)(stored, FP32, m->dim, number == 0, out);
            }
        }
        if (table[MEAN] && length > 1)
            for (int64_t column = 0; column < m->dim; column++) out[column] /= (float)length;
    }
}

/* The sums of the lanes of four vectors. */
INLINE __m128 NAME(sums)(const VECTOR *four) {
    const __m256 left = _mm256_hadd_ps(HALVED(four[0]), HALVED(four[1]));
    const __m256 right = _mm256_hadd_ps(HALVED(four[2]), HALVED(four[3]));
    const __m256 all = _mm256_hadd_ps(left, right);
    return _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1));
}

/* The products of each pair of vectors, in the order (0, 1), (0, 2), ... (1, 2), ... Two left vectors
   with four right ones at a time: eight products for six loads. Vectors are padded with zeros. Unless
   this is the `first` row, the row before is one stride back: it has the products of repeated
   vectors, which are taken if both left ones are. */
OUTLINE void NAME(pairs)(const scratch *s, int64_t count, int64_t dim, int first, float *out) {
    const int64_t stride = s->vector_stride;
    for (int64_t left = 0; left + 1 < count; left += 2) {
        const float *one = s->vectors + left * stride, *two = one + stride;
        /* Where their products with vector 0 would be, if there were any. */
        float *ones = out - left - 1, *twos = ones + count - left - 2;
        int64_t right = left + 1;
        if (!first && s->repeated[left] && s->repeated[left + 1]) {
            while (right < count && s->repeated[right]) right++;
            const size_t kept = (size_t)(right - left - 1) * sizeof(float);
            memcpy(ones + left + 1, ones + left + 1 - s->stride, kept);
            memcpy(twos + left + 2, twos + left + 2 - s->stride, kept - sizeof(float));
        }
        for (; right < count; right += 4) {
            const int64_t wanted = count - right < 4 ? count - right : 4;
            const float *other = s->vectors + right * stride;
            /* Past the last vector the same one is taken again, and its product dropped. */
            const int64_t step1 = wanted > 1 ? stride : 0, step2 = wanted > 2 ? 2 * stride : 0;
            const int64_t step3 = wanted > 3 ? 3 * stride : 0;
            VECTOR sum[2][4] = {{ZERO, ZERO, ZERO, ZERO}, {ZERO, ZERO, ZERO, ZERO}};
            _Pragma("GCC unroll 4") for (int64_t column = 0; column < dim; column += LANES) {
                const VECTOR first_value = LOAD(one + column), second = LOAD(two + column);
                const VECTOR values[4] = {LOAD(other + column), LOAD(other + step1 + column),
                                          LOAD(other + step2 + column),
                                          LOAD(other + step3 + column)};
                UNROLL for (int at = 0; at < 4; at++) {
                    sum[0][at] = MULTIPLY_ADD(first_value, values[at], sum[0][at]);
                    sum[1][at] = MULTIPLY_ADD(second, values[at], sum[1][at]);
                }
            }
            /* The product of the second one with itself is written where the last of the first one
               belongs, which is written later. */
            NAME(store)(twos + right, wanted, NAME(sums)(sum[1]));
            NAME(store)(ones + right, wanted, NAME(sums)(sum[0]));
        }
        out += 2 * (count - left) - 3;
    }
}

/* The one output of the last layer. */
INLINE float NAME(last)(const layer *l, const float *x) {
    const float *weight = l->weight;
    VECTOR sum = ZERO;
    int64_t input = 0;
    for (; input + LANES <= l->inputs; input += LANES)
        sum = MULTIPLY_ADD(LOAD(x + input), LOAD(weight + input), sum);
    const VECTOR alike[4] = {sum, sum, sum, sum};
    float total = _mm_cvtss_f32(NAME(sums)(alike)) + l->bias[0];
    for (; input < l->inputs; input++) total += x[input] * weight[input];
    return l->relu && total < 0 ? 0 : total;
}

/* Copy the dense values of each row of a block that does not repeat them; return how many do not. */
OUTLINE int64_t NAME(distinct)(const model *m, const batch *b, int64_t start, int64_t rows,
                               float *out, int64_t out_stride) {
    const int64_t inputs = m->dense[0].inputs;
    int64_t count = 0;
    for (int64_t row = start; row < start + rows; row++)
        if (row == start || !repeats(m, b, row, -1))
            memcpy(out + count++ * out_stride, b->dense + row * inputs,
                   (size_t)inputs * sizeof(float));
    return count;
}

OUTLINE void NAME(block)(const model *m, const scratch *s, const batch *b, int64_t start,
                         int64_t rows, float *scores) {
    int64_t *cursors = s->cursors, *ahead = s->cursors + m->features;
    float *free = s->left, *taken = s->right, *other;
    const float *x = b->dense + start * m->dense[0].inputs;
    int64_t x_stride = m->dense[0].inputs, dense_rows = rows;
    if (b->pattern_of_row) {
        dense_rows = NAME(distinct)(m, b, start, rows, taken, s->stride);
        x = taken, x_stride = s->stride;
    }
    if (start == 0)
        for (int64_t row = 0; row < ROWS_AHEAD && row < b->rows; row++) fetch_ahead(m, b, row, ahead);
    for (int64_t number = 0; number < m->dense_layers; number++) {
        NAME(apply)(m->dense + number, s, dense_rows, x, x_stride, free);
        other = free, free = taken, taken = other, x = taken, x_stride = s->stride;
    }
    /* The products are appended to the dense vectors, where the last layer left them if each row
       has its own. */
    if (dense_rows < rows) other = free, free = taken, taken = other;
    for (int64_t row = 0; row < rows; row++) {
        float *joined = taken + row * s->stride;
        s->repeated[0] = row && repeats(m, b, start + row, -1);
        if (row && !s->repeated[0]) x += s->stride;
        if (joined != x) memcpy(joined, x, (size_t)m->dim * sizeof(float));
        const int64_t next = start + row + ROWS_AHEAD;
        if (next < b->rows) fetch_ahead(m, b, next, ahead);
        memcpy(s->vectors, joined, (size_t)m->dim * sizeof(float));
        NAME(pool)(m, s, b, start + row, cursors);
        NAME(pairs)(s, m->features + 1, m->dim, row == 0, joined + m->dim);
    }
    x = taken;
    for (int64_t number = 0; number + 1 < m->over_layers; number++) {
        NAME(apply)(m->over + number, s, rows, x, s->stride, free);
        other = free, free = taken, taken = other, x = taken;
    }
    for (int64_t row = 0; row < rows; row++) {
        const float logit = NAME(last)(m->over + m->over_layers - 1, x + row * s->stride);
        scores[start + row] = m->sigmoid ? 1 / (1 + expf(-logit)) : logit;
    }
}

OUTLINE void NAME(forward)(const model *m, const scratch *s, const batch *b, float *scores) {
    const int64_t blocks = (b->rows + s->block_rows - 1) / s->block_rows;
    start_cursors(m, b, s->cursors);
    memcpy(s->cursors + m->features, s->cursors, (size_t)m->features * sizeof(int64_t));
    for (int64_t number = 0; number < blocks; number++) {
        const int64_t first = b->rows * number / blocks, end = b->rows * (number + 1) / blocks;
        NAME(block)(m, s, b, first, end - first, scores);
    }
}

#undef LEVEL
#undef FEW_ROWS
#undef TARGET
#undef WIDE_ROWS
#undef FEW_SUMS
#undef INTEGERS
#undef LOAD_BITS
#undef EITHER
#undef NOT_ZERO
#undef LANES
#undef VECTOR
#undef LOAD
#undef STORE
#undef SPREAD
#undef MULTIPLY_ADD
#undef ADD
#undef MAXIMUM
#undef ZERO
#undef FROM_BYTES
#undef FROM_NIBBLES
#undef FROM_HALVES
#undef FROM_TRIPLES
#undef HALVED
