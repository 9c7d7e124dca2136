// link.h: one non-blocking connection of the load generator.
//
// What: frames out (packed straight into a buffer that is flushed once a turn)
// and frames in (unpacked into an arena that is reset after each frame, so a
// frame and all it holds is valid only inside the callback).
// Why not libawa: that waits for each answer and allocates for each job.
// Failures end the program: a load generator has nobody to report them to.
#ifndef BENCH_LINK_H
#define BENCH_LINK_H

#include "awa/v1/awa.pb-c.h"

#include <stddef.h>
#include <stdint.h>

struct link;

// Prints "awa-bench: …" and exits 1.
__attribute__((format(printf, 1, 2), noreturn)) void die(const char *format, ...);

// Connects to the Unix socket `path` and says hello; blocks until it is answered.
struct link *link_open(const char *path, const char *worker_name);
void link_close(struct link *link);

int link_fd(const struct link *link);
void link_send(struct link *link, const Awa__V1__ClientFrame *frame);
void link_flush(struct link *link); // as much as the socket takes
int link_has_output(const struct link *link);

typedef void (*frame_handler)(void *context, const Awa__V1__ServerFrame *frame);
// Hands out every frame that is there.
void link_receive(struct link *link, frame_handler handle, void *context);

#endif
