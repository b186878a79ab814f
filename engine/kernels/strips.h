/* Defines multiply_strips() for a source that has defined MAX_STRIP_ROWS and multiply_strip(). Each includes it once. */

/* All rows with a pair of blocks, in strips of rows that do not cross a tile. */
static void multiply_strips(const struct linear_args *args, int64_t pair) {
    for (int64_t row = 0; row < args->count;) {
        const int64_t tile_end = (row / TILE_ROWS + 1) * TILE_ROWS;
        const int64_t left = (tile_end < args->count ? tile_end : args->count) - row;
        /* Two even strips are faster than a full one and a short rest. */
        const int64_t count =
            left <= MAX_STRIP_ROWS ? left : left < 2 * MAX_STRIP_ROWS ? (left + 1) / 2 : MAX_STRIP_ROWS;
        switch (count) { /* a constant number of rows keeps the sums in registers */
#define STRIP(n) case n: multiply_strip(n, args, row, pair); break;
            STRIP(1) STRIP(2)
#if MAX_STRIP_ROWS > 2
            STRIP(3) STRIP(4)
#endif
#if MAX_STRIP_ROWS > 4
            STRIP(5) STRIP(6)
#endif
#if MAX_STRIP_ROWS > 6
            STRIP(7) STRIP(8)
#endif
#if MAX_STRIP_ROWS > 8
            STRIP(9) STRIP(10) STRIP(11) STRIP(12)
#endif
        }
        row += count;
    }
}
