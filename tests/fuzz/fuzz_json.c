/* Any bytes as JSON. Besides not crashing: what is accepted stays accepted inside an array, and no
 * prefix of an accepted object or array is accepted. */
#include <stdlib.h>

#include "base/check.h"
#include "base/limits.h"
#include "wire/json_scan.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static enum json_verdict scan_wrapped(struct bytes text)
{
    size_t at = 0;
    uint8_t *wrapped = malloc(text.len + 2);

    CHECK(wrapped != NULL);
    wrapped[0] = '[';
    if (text.len > 0)
        memcpy(wrapped + 1, text.data, text.len);
    wrapped[text.len + 1] = ']';
    enum json_verdict verdict = json_scan(bytes_of(wrapped, text.len + 2), &at);
    free(wrapped);
    return verdict;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t at = 0;
    enum json_verdict verdict = json_scan(bytes_of(data, size), &at);

    CHECK(at <= size);
    if (verdict == JSON_OBJECT || verdict == JSON_OTHER) {
        enum json_verdict wrapped = scan_wrapped(bytes_of(data, size));
        CHECK(wrapped == JSON_OTHER || wrapped == JSON_TOO_DEEP);
    }
    if (verdict == JSON_OBJECT && data[size - 1] == '}')
        CHECK(json_scan(bytes_of(data, size - 1), &at) == JSON_MALFORMED);
    return 0;
}
