/* The dense layers for one instruction set: level.h includes this. */

enum { NAME(COLUMNS) = 2 * LANES };

/* List the inputs that are not 0 in all rows, after how many those are. NaN is not 0. */
INLINE void NAME(find_used)(int64_t rows, int64_t inputs, const float *x, int64_t x_stride,
                            int32_t *used) {
    int32_t count = 0;
    for (int64_t input = 0; input < inputs; input += LANES) {
        const int64_t here = inputs - input < LANES ? inputs - input : LANES;
        uint32_t some = 0;
        if (here == LANES) {
            INTEGERS bits = LOAD_BITS(x + input);
            for (int64_t row = 1; row < rows; row++)
                bits = EITHER(bits, LOAD_BITS(x + row * x_stride + input));
            some = NOT_ZERO(bits);
        } else {
            for (int64_t row = 0; row < rows; row++)
                for (int64_t at = 0; at < here; at++)
                    some |= (uint32_t)(x[row * x_stride + input + at] != 0) << at;
        }
        count += NAME(write_used)((int32_t)input, some, used + 1 + count);
    }
    used[0] = count;
}

/* Add one input's products to the sums of a tile. */
INLINE void NAME(add_input)(const int rows, const int vectors, const int half, const char *panel,
                            int64_t next_panel, const char *const *base, int64_t stride_bytes,
                            int64_t input, VECTOR (*sum)[TILE_VECTORS]) {
    const int64_t size = half ? 2 : sizeof(float), line = NAME(COLUMNS) * size;
    VECTOR weights[TILE_VECTORS];
    UNROLL for (int v = 0; v < vectors; v++) {
        const char *at = panel + input * line + v / 2 * next_panel + v % 2 * LANES * size;
        weights[v] = half ? FROM_HALVES(at) : LOAD((const float *)at);
        /* A panel of many inputs does not stay in the first-level cache from strip to strip. */
        if (rows > 3) __builtin_prefetch(at + INPUTS_AHEAD * line);
    }
    UNROLL for (int r = 0; r < rows; r++) {
        const char *at = base[r / 3] + r % 3 * stride_bytes + input * (int64_t)sizeof(float);
        const VECTOR value = SPREAD(*(const float *)at);
        UNROLL for (int v = 0; v < vectors; v++)
            sum[r][v] = MULTIPLY_ADD(value, weights[v], sum[r][v]);
    }
}

/* rows x vectors outputs of one layer, kept in registers over the inputs in `used`. Both numbers are
   constants; the third and fourth vector are the next panel's.

   half: FP16 weights are widened as they are read. Few rows leave too few sums in flight for the
   latency of a multiply-add: then `ways` sums of each are kept, over every ways-th input. Rows of x
   are reached from every third one, because there are not registers for all their addresses. */
INLINE void NAME(tile)(const int rows, const int vectors, const int half, const layer *l,
                       const float *x, int64_t x_stride, const int32_t *used, int64_t column,
                       float *out, int64_t out_stride) {
    const int ways = rows == 1 ? 8 / vectors : rows * vectors <= FEW_SUMS ? 2 : 1;
    const int bases = (rows + 2) / 3;
    const int64_t stride_bytes = x_stride * (int64_t)sizeof(float), count = used[0];
    const int64_t size = half ? 2 : sizeof(float);
    const char *const panel = (const char *)l->weight + column * l->inputs * size;
    const int64_t next_panel = l->inputs * NAME(COLUMNS) * size;
    VECTOR sum[4][TILE_ROWS][TILE_VECTORS];
    const char *base[(TILE_ROWS + 2) / 3];
    UNROLL for (int b = 0; b < bases; b++) base[b] = (const char *)x + 3 * b * stride_bytes;
    UNROLL for (int w = 0; w < ways; w++)
        UNROLL for (int r = 0; r < rows; r++)
            UNROLL for (int v = 0; v < vectors; v++)
                sum[w][r][v] = w ? ZERO : LOAD(l->bias + column + v * LANES);
    int64_t number = 0;
    for (used++; number + ways <= count; number += ways)
        UNROLL for (int w = 0; w < ways; w++)
            NAME(add_input)(rows, vectors, half, panel, next_panel, base, stride_bytes,
                            used[number + w], sum[w]);
    for (; number < count; number++)
        NAME(add_input)(rows, vectors, half, panel, next_panel, base, stride_bytes, used[number],
                        sum[0]);
    UNROLL for (int r = 0; r < rows; r++) {
        UNROLL for (int v = 0; v < vectors; v++) {
            VECTOR total = sum[0][r][v];
            UNROLL for (int w = 1; w < ways; w++) total = ADD(total, sum[w][r][v]);
            /* In this order NaN stays NaN. */
            if (l->relu) total = MAXIMUM(ZERO, total);
            STORE(out + r * out_stride + v * LANES, total);
        }
    }
}

#define TILE_OF(n, vectors) \
    if (l->half) NAME(tile)(n, vectors, 1, l, x, x_stride, used, column, out, out_stride); \
    else NAME(tile)(n, vectors, 0, l, x, x_stride, used, column, out, out_stride);
#define TILE(n) \
    case n: \
        if (n <= WIDE_ROWS && vectors == TILE_VECTORS) { TILE_OF(n, TILE_VECTORS) } \
        else { TILE_OF(n, 2) } \
        break;

OUTLINE void NAME(strip)(int64_t rows, int64_t vectors, const layer *l, const float *x,
                         int64_t x_stride, const int32_t *used, int64_t column, float *out,
                         int64_t out_stride) {
    switch (rows) {
        TILE(1) TILE(2) TILE(3) TILE(4) TILE(5) TILE(6)
    }
}

#undef TILE
#undef TILE_OF

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
    /* Four panels lie side by side, whether all of the last one is outputs or not. */
    for (; column + (WIDE_VECTORS - 2) * LANES < l->outputs; column += WIDE_VECTORS * LANES)
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

/* One layer for a block of rows, in strips of nearly equal heights. An input that is 0 in all rows
   of a strip, as many are after a ReLU, is passed over, which changes no sum. */
OUTLINE void NAME(apply)(const layer *l, const scratch *s, int64_t rows, const float *x,
                         int64_t x_stride, float *out) {
    const int64_t most = strip_rows(LANES == 16 ? AVX512 : AVX2), strips = (rows + most - 1) / most;
    const int64_t list = l->inputs + USED_SPARE;
    if (l->triples && rows <= FEW_ROWS && l->inputs <= MOST_INPUTS &&
        are_small(rows, l->inputs, x, x_stride)) {
        NAME(apply_to_few)(l, rows, x, x_stride, out, s->stride);
        return;
    }
    for (int64_t number = 0; number < strips; number++) {
        const int64_t first = rows * number / strips, end = rows * (number + 1) / strips;
        NAME(find_used)(end - first, l->inputs, x + first * x_stride, x_stride,
                        s->used + number * list);
    }
    const int64_t widest = rows <= WIDE_ROWS || most <= WIDE_ROWS ? TILE_VECTORS : 2;
    for (int64_t column = 0, vectors; column < l->outputs; column += vectors * LANES) {
        vectors = column + NAME(COLUMNS) < l->outputs ? widest : 2;
        for (int64_t number = 0; number < strips; number++) {
            const int64_t first = rows * number / strips, end = rows * (number + 1) / strips;
            NAME(strip)(end - first, vectors, l, x + first * x_stride, x_stride,
                        s->used + number * list, column, out + first * s->stride + column,
                        s->stride);
        }
    }
}
