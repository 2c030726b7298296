/* What the caller lays out in memory; compiled.py has the same structures, field by field. */

#include <stdint.h>

/* weight: panels of narsil_panel_columns outputs, each (inputs, columns), the last one padded with
   zeros, as the bias is; halves instead of floats if `half`. The last of the over layers is one
   plain row of floats, one an input. triples: the same floats as whole numbers of three bytes, each
   output's to be scaled, four panels side by side as long as there are four, and 16 bytes to spare
   after the last; null if none. */
typedef struct {
    const void *weight;
    const float *bias;
    const uint8_t *triples;
    const float *scale;
    int64_t inputs, outputs, relu, half;
} layer;

/* tables: (features, FIELDS), in the order of the wire. */
typedef struct {
    const uint8_t *storage;
    const int64_t *tables;
    const layer *dense, *over;
    int64_t features, dim, dense_layers, over_layers, sigmoid;
} model;

/* One lane's memory. left, right: block_rows rows of stride floats. vectors: features + 1 rows of
   vector_stride floats, zeros. cursors: 2 * features. repeated: features + 1. used: as many as
   narsil_used_size says. */
typedef struct {
    float *left, *right, *vectors;
    int64_t *cursors, *repeated;
    int32_t *used;
    int64_t block_rows, stride, vector_stride;
} scratch;

/* dense: (rows, inputs of the first layer); lengths: (features, rows). pattern_of_row: which of the
   patterns, (features + 1) each, says what a row has of the row before: first the dense values, then
   the bag of each feature. Null if no row is known to have any. */
typedef struct {
    const float *dense;
    const int32_t *lengths;
    const void *ids;
    const int32_t *pattern_of_row;
    const uint8_t *patterns;
    int64_t rows, wide_ids;
} batch;

/* The best instruction set of this CPU, or 0 if it has none of those needed. */
int narsil_best_level(void);
int narsil_panel_columns(int level);
/* How many numbers a lane needs to list the inputs of its layers that are not 0. */
int64_t narsil_used_size(int level, const model *m, int64_t block_rows);
void narsil_forward(int level, const model *m, const scratch *s, const batch *b, float *scores);
