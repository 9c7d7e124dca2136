/* check: see check.h. */
#include "base/check.h"

#include <stdio.h>
#include <stdlib.h>

void check_failed(const char *condition, const char *file, int line)
{
    fprintf(stderr, "level=fatal event=check_failed condition=\"%s\" file=%s line=%d\n", condition,
            file, line);
    abort();
}
