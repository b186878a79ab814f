/* Calls kernels on request, for a test on another machine's CPU: reads calls from stdin, writes results to stdout.
 *
 * A call is a struct call, then its buffers, each as its size and its bytes, then its relocations. The first buffer is
 * the structure of arguments. A relocation puts the address of a buffer, plus an offset, into another buffer. The reply
 * is the value that the kernel returns and the bytes of all buffers.
 */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

struct call { int64_t function, num_buffers, num_relocations; double scalar; };
struct relocation { int64_t buffer, position, target, offset; };

/* Kernels without a scalar ignore the register that holds it, and those without a result leave any value in theirs. */
#define FUNCTION(name) int64_t antiphon_##name(void *args, float scalar);
FUNCTIONS
#undef FUNCTION
#define FUNCTION(name) antiphon_##name,
static int64_t (*const functions[])(void *, float) = {FUNCTIONS};

static void read_bytes(void *to, size_t size) {
    if (size && fread(to, size, 1, stdin) != 1) exit(feof(stdin) ? 0 : 1);
}

int main(void) {
    for (;;) {
        struct call call;
        read_bytes(&call, sizeof call);
        int64_t sizes[call.num_buffers];
        char *buffers[call.num_buffers];
        for (int64_t i = 0; i < call.num_buffers; i++) {
            read_bytes(sizes + i, sizeof *sizes);
            buffers[i] = aligned_alloc(64, (sizes[i] / 64 + 1) * 64);
            read_bytes(buffers[i], sizes[i]);
        }
        for (int64_t i = 0; i < call.num_relocations; i++) {
            struct relocation entry;
            read_bytes(&entry, sizeof entry);
            *(int64_t *)(buffers[entry.buffer] + entry.position) = (int64_t)(buffers[entry.target] + entry.offset);
        }
        const int64_t result = functions[call.function](buffers[0], (float)call.scalar);
        fwrite(&result, sizeof result, 1, stdout);
        for (int64_t i = 0; i < call.num_buffers; i++) {
            fwrite(buffers[i], sizes[i], 1, stdout);
            free(buffers[i]);
        }
        fflush(stdout);
    }
}
