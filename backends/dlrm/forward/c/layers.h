/* The dense layers for one instruction set: level.h includes this. */

enum { NAME(COLUMNS) = 2 * LANES };

INLINE VECTOR NAME(weights)(const char *at, const int form) {
    if (form == TRIPLES) return FROM_TRIPLES(at);
    return form == HALVES ? FROM_HALVES(at) : LOAD((const float *)at);
}

/* rows x COLUMNS outputs of one layer, kept in registers over all inputs. rows is a constant.

   form: what the panel has, which is widened as it is read; whole numbers are scaled at the end.
   Few rows leave too few sums in flight for the latency of a multiply-add: then `ways` sums of each
   are kept, over every ways-th input. Rows of x are reached from every third one, because there are
   not registers for all their addresses; the empty asm keeps the compiler from making them. */
INLINE void NAME(tile)(const int rows, const int form, const layer *l, const float *x,
                       int64_t x_stride, const char *panel, int64_t column, float *out,
                       int64_t out_stride) {
    const int ways = rows == 1 ? 4 : rows <= 3 ? 2 : 1, bases = (rows + 2) / 3;
    const int64_t stride_bytes = x_stride * (int64_t)sizeof(float);
    const int64_t size = form == TRIPLES ? 3 : form == HALVES ? 2 : sizeof(float);
    const float *bias = l->bias + column;
    VECTOR sum[4][TILE_ROWS][2];
    const char *base[(TILE_ROWS + 2) / 3];
    UNROLL for (int b = 0; b < bases; b++) base[b] = (const char *)x + 3 * b * stride_bytes;
    UNROLL for (int w = 0; w < ways; w++) {
        UNROLL for (int r = 0; r < rows; r++) {
            sum[w][r][0] = w || form == TRIPLES ? ZERO : LOAD(bias);
            sum[w][r][1] = w || form == TRIPLES ? ZERO : LOAD(bias + LANES);
        }
    }
    int64_t input = 0;
    for (; input + ways <= l->inputs; input += ways) {
        UNROLL for (int b = 0; b < bases; b++) __asm__("" : "+r"(base[b]));
        UNROLL for (int w = 0; w < ways; w++) {
            const VECTOR first = NAME(weights)(panel, form);
            const VECTOR second = NAME(weights)(panel + LANES * size, form);
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
        const VECTOR first = NAME(weights)(panel, form);
        const VECTOR second = NAME(weights)(panel + LANES * size, form);
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
            if (form == TRIPLES)
                total = MULTIPLY_ADD(total, LOAD(l->scale + column + side * LANES),
                                     LOAD(bias + side * LANES));
            /* In this order NaN stays NaN. */
            if (l->relu) total = MAXIMUM(ZERO, total);
            STORE(out + r * out_stride + side * LANES, total);
        }
    }
}

#define TILE(n) \
    case n: \
        if (form == TRIPLES && n <= FEW_ROWS) \
            NAME(tile)(n, TRIPLES, l, x, x_stride, panel, column, out, out_stride); \
        else if (form == HALVES) \
            NAME(tile)(n, HALVES, l, x, x_stride, panel, column, out, out_stride); \
        else NAME(tile)(n, FLOATS, l, x, x_stride, panel, column, out, out_stride); \
        break;

OUTLINE void NAME(strip)(int64_t rows, int form, const layer *l, const float *x, int64_t x_stride,
                         const char *panel, int64_t column, float *out, int64_t out_stride) {
    switch (rows) {
        TILE(1) TILE(2) TILE(3) TILE(4) TILE(5) TILE(6)
#if TILE_ROWS > 6
        TILE(7) TILE(8) TILE(9) TILE(10) TILE(11) TILE(12) TILE(13) TILE(14)
#endif
    }
}

#undef TILE

/* One layer for a block of rows, in strips of nearly equal heights. */
OUTLINE void NAME(apply)(const layer *l, int64_t rows, const float *x, int64_t x_stride, float *out,
                         int64_t out_stride) {
    const int64_t strips = (rows + TILE_ROWS - 1) / TILE_ROWS;
    const int form = l->half ? HALVES : l->triples && rows <= FEW_ROWS ? TRIPLES : FLOATS;
    const char *weight = form == TRIPLES ? (const char *)l->triples : l->weight;
    const int64_t input_bytes = form == TRIPLES ? 3 : form == HALVES ? 2 : 4;
    for (int64_t column = 0; column < l->outputs; column += NAME(COLUMNS)) {
        const char *panel = weight + column * l->inputs * input_bytes;
        for (int64_t number = 0; number < strips; number++) {
            const int64_t first = rows * number / strips, end = rows * (number + 1) / strips;
            NAME(strip)(end - first, form, l, x + first * x_stride, x_stride, panel, column,
                        out + first * out_stride + column, out_stride);
        }
    }
}
