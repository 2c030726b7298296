/* The dense layers for one instruction set: level.h includes this. */

enum { NAME(COLUMNS) = 2 * LANES };

INLINE VECTOR NAME(weights)(const char *at, const int half) {
    return half ? FROM_HALVES(at) : LOAD((const float *)at);
}

/* rows x COLUMNS outputs of one layer, kept in registers over all inputs. rows is a constant.

   half: FP16 weights are widened as they are read. Few rows leave too few sums in flight for the
   latency of a multiply-add: then `ways` sums of each are kept, over every ways-th input. Rows of x
   are reached from every third one, because there are not registers for all their addresses; the
   empty asm keeps the compiler from making them. */
INLINE void NAME(tile)(const int rows, const int half, const layer *l, const float *x,
                       int64_t x_stride, const char *panel, int64_t column, float *out,
                       int64_t out_stride) {
    const int ways = rows == 1 ? 4 : rows <= 3 ? 2 : 1, bases = (rows + 2) / 3;
    const int64_t stride_bytes = x_stride * (int64_t)sizeof(float);
    const int64_t size = half ? 2 : sizeof(float);
    const float *bias = l->bias + column;
    VECTOR sum[4][TILE_ROWS][2];
    const char *base[(TILE_ROWS + 2) / 3];
    UNROLL for (int b = 0; b < bases; b++) base[b] = (const char *)x + 3 * b * stride_bytes;
    UNROLL for (int w = 0; w < ways; w++) {
        UNROLL for (int r = 0; r < rows; r++) {
            sum[w][r][0] = w ? ZERO : LOAD(bias);
            sum[w][r][1] = w ? ZERO : LOAD(bias + LANES);
        }
    }
    int64_t input = 0;
    for (; input + ways <= l->inputs; input += ways) {
        UNROLL for (int b = 0; b < bases; b++) __asm__("" : "+r"(base[b]));
        UNROLL for (int w = 0; w < ways; w++) {
            const VECTOR first = NAME(weights)(panel, half);
            const VECTOR second = NAME(weights)(panel + LANES * size, half);
            /* A panel of many inputs does not stay in the first-level cache from strip to strip. */
            if (rows > 3) {
                __builtin_prefetch(panel + INPUTS_AHEAD * NAME(COLUMNS) * size);
                __builtin_prefetch(panel + (INPUTS_AHEAD * NAME(COLUMNS) + LANES) * size);
            }
            panel += NAME(COLUMNS) * size;
            UNROLL for (int r = 0; r < rows; r++) {
                const char *at = base[r / 3] + (r % 3) * stride_bytes;
                const VECTOR value = SPREAD(((const float *)at)[w]);
                sum[w][r][0] = MULTIPLY_ADD(value, first, sum[w][r][0]);
                sum[w][r][1] = MULTIPLY_ADD(value, second, sum[w][r][1]);
            }
        }
        UNROLL for (int b = 0; b < bases; b++) base[b] += ways * sizeof(float);
    }
    for (; input < l->inputs; input++, panel += NAME(COLUMNS) * size) {
        const VECTOR first = NAME(weights)(panel, half);
        const VECTOR second = NAME(weights)(panel + LANES * size, half);
        UNROLL for (int r = 0; r < rows; r++) {
            const VECTOR value = SPREAD(x[r * x_stride + input]);
            sum[0][r][0] = MULTIPLY_ADD(value, first, sum[0][r][0]);
            sum[0][r][1] = MULTIPLY_ADD(value, second, sum[0][r][1]);
        }
    }
    UNROLL for (int r = 0; r < rows; r++) {
        UNROLL for (int side = 0; side < 2; side++) {
            VECTOR total = sum[0][r][side];
            UNROLL for (int w = 1; w < ways; w++) total = ADD(total, sum[w][r][side]);
            /* In this order NaN stays NaN. */
            if (l->relu) total = MAXIMUM(ZERO, total);
            STORE(out + r * out_stride + side * LANES, total);
        }
    }
}

#define TILE(n) \
    case n: \
        if (l->half) NAME(tile)(n, 1, l, x, x_stride, panel, column, out, out_stride); \
        else NAME(tile)(n, 0, l, x, x_stride, panel, column, out, out_stride); \
        break;

OUTLINE void NAME(strip)(int64_t rows, const layer *l, const float *x, int64_t x_stride,
                         const char *panel, int64_t column, float *out, int64_t out_stride) {
    switch (rows) {
        TILE(1) TILE(2) TILE(3) TILE(4) TILE(5) TILE(6)
#if TILE_ROWS > 6
        TILE(7) TILE(8) TILE(9) TILE(10) TILE(11) TILE(12) TILE(13) TILE(14)
#endif
    }
}

#undef TILE

/* A panel of `vectors` for few rows on whole numbers of three bytes, scaled at the end. Of the
   inputs only those in `used` count; AHEAD more may be read of it, whose weights are asked for. */
INLINE void NAME(few_panel)(const int rows, const int vectors, const layer *l, const float *x,
                            int64_t x_stride, const int32_t *used, int64_t count, int64_t column,
                            float *out, int64_t out_stride) {
    const int bytes = vectors * LANES * TRIPLE_BYTES;
    const char *panel = (const char *)l->triples + column * l->inputs * TRIPLE_BYTES;
    VECTOR sum[FEW_ROWS][WIDE_VECTORS], value[FEW_ROWS];
    UNROLL for (int r = 0; r < rows; r++) UNROLL for (int v = 0; v < vectors; v++) sum[r][v] = ZERO;
    for (int64_t number = 0; number < count; number++) {
        const char *at = panel + (int64_t)used[number] * bytes;
        const char *next = panel + (int64_t)used[number + AHEAD] * bytes;
        UNROLL for (int byte = 0; byte < bytes; byte += LINE_BYTES)
            __builtin_prefetch(next + byte);
        UNROLL for (int r = 0; r < rows; r++) value[r] = SPREAD(x[r * x_stride + used[number]]);
        UNROLL for (int v = 0; v < vectors; v++) {
            const VECTOR weights = FROM_TRIPLES(at + v * LANES * TRIPLE_BYTES);
            UNROLL for (int r = 0; r < rows; r++)
                sum[r][v] = MULTIPLY_ADD(value[r], weights, sum[r][v]);
        }
    }
    UNROLL for (int r = 0; r < rows; r++) {
        UNROLL for (int v = 0; v < vectors; v++) {
            const int64_t first = column + v * LANES;
            VECTOR total = MULTIPLY_ADD(sum[r][v], LOAD(l->scale + first), LOAD(l->bias + first));
            if (l->relu) total = MAXIMUM(ZERO, total);
            STORE(out + r * out_stride + first, total);
        }
    }
}

/* One layer for few rows. An input that is 0 in all of them, as every other one is after a ReLU, is
   passed over with its weights: reading those is the work. NaN is none. */
INLINE void NAME(few)(const int rows, const layer *l, const float *x, int64_t x_stride, float *out,
                      int64_t out_stride) {
    int32_t used[MOST_INPUTS + 1 + AHEAD];
    int64_t count = 0, column = 0;
    for (int64_t input = 0; input < l->inputs; input++) {
        int some = 0;
        UNROLL for (int r = 0; r < rows; r++) some |= x[r * x_stride + input] != 0;
        used[count] = (int32_t)input;
        count += some;
    }
    for (int ahead = 0; ahead < AHEAD; ahead++) used[count + ahead] = count ? used[count - 1] : 0;
    for (; column + WIDE_VECTORS * LANES <= l->outputs; column += WIDE_VECTORS * LANES)
        NAME(few_panel)(rows, WIDE_VECTORS, l, x, x_stride, used, count, column, out, out_stride);
    for (; column < l->outputs; column += NAME(COLUMNS))
        NAME(few_panel)(rows, 2, l, x, x_stride, used, count, column, out, out_stride);
}

#define FEW(n) \
    case n: NAME(few)(n, l, x, x_stride, out, out_stride); break;

OUTLINE void NAME(apply_to_few)(const layer *l, int64_t rows, const float *x, int64_t x_stride,
                                float *out, int64_t out_stride) {
    switch (rows) {
        FEW(1)
#if FEW_ROWS > 1
        FEW(2) FEW(3)
#endif
    }
}

#undef FEW

/* One layer for a block of rows, in strips of nearly equal heights. */
OUTLINE void NAME(apply)(const layer *l, int64_t rows, const float *x, int64_t x_stride, float *out,
                         int64_t out_stride) {
    const int64_t strips = (rows + TILE_ROWS - 1) / TILE_ROWS;
    if (l->triples && rows <= FEW_ROWS && l->inputs <= MOST_INPUTS &&
        are_small(rows, l->inputs, x, x_stride)) {
        NAME(apply_to_few)(l, rows, x, x_stride, out, out_stride);
        return;
    }
    for (int64_t column = 0; column < l->outputs; column += NAME(COLUMNS)) {
        const char *panel = (const char *)l->weight + column * l->inputs * (l->half ? 2 : 4);
        for (int64_t number = 0; number < strips; number++) {
            const int64_t first = rows * number / strips, end = rows * (number + 1) / strips;
            NAME(strip)(end - first, l, x + first * x_stride, x_stride, panel, column,
                        out + first * out_stride + column, out_stride);
        }
    }
}
