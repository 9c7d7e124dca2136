/* check: see check.h. */
#include "base/check.h"

#include "base/log.h"

void check_failed(const char *condition, const char *file, int line)
{
    char text[200];

    log_fatal("check_failed", "condition=\"%s\" file=%s line=%d",
              log_text(text, sizeof text, condition), file, line);
}
