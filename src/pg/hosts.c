/* hosts: see hosts.h. What is a name, a path or an address is decided as in libpq. */
#include "pg/hosts.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

#include <libpq-fe.h>

#include "base/mem.h"

/* ---- what the URL says ---- */

static const char *said(const PQconninfoOption *options, const char *keyword)
{
    const PQconninfoOption *option = options;

    while (option->keyword != NULL && strcmp(option->keyword, keyword) != 0)
        option++;
    if (option->keyword == NULL || option->val != NULL)
        return option->val;
    return option->envvar != NULL ? getenv(option->envvar) : NULL;
}

static size_t item_count(const char *list)
{
    size_t count = 1;

    if (list == NULL || list[0] == '\0')
        return 0;
    for (const char *at = list; *at != '\0'; at++)
        count += *at == ',';
    return count;
}

static char *text_copy(const char *text, size_t len)
{
    char *copy = mem_alloc(len + 1);

    memcpy(copy, text, len);
    copy[len] = '\0';
    return copy;
}

/* The list has an item for each host, or one for all. */
static char *item_copy(const char *list, size_t at)
{
    size_t count = item_count(list);

    if (count == 0)
        return NULL;
    for (size_t i = count > 1 ? at : 0; i > 0; i--)
        list = strchr(list, ',') + 1;
    return text_copy(list, strcspn(list, ","));
}

/* How many hosts these lists are about; 0: libpq sees to it. */
static size_t host_count(const char *const lists[HOST_PARTS])
{
    size_t names = item_count(lists[HOST_NAME]);
    size_t addresses = item_count(lists[HOST_ADDRESS]);
    size_t ports = item_count(lists[HOST_PORT]);
    size_t hosts = addresses > 0 ? addresses : names;

    if ((names > 0 && names != hosts) || (ports > 1 && ports != hosts))
        return 0;
    return hosts;
}

static void read_lists(const char *const lists[HOST_PARTS], unsigned attempt, struct hosts *hosts)
{
    hosts->count = host_count(lists);
    if (hosts->count == 0)
        return;
    hosts->round = attempt / (unsigned)hosts->count;
    hosts->items = mem_alloc(hosts->count * sizeof hosts->items[0]);
    for (size_t i = 0; i < hosts->count; i++)
        for (size_t part = 0; part < HOST_PARTS; part++)
            hosts->items[i].part[part] = item_copy(lists[part], (attempt + i) % hosts->count);
}

void hosts_from(const char *url, unsigned attempt, struct hosts *hosts)
{
    PQconninfoOption *options = PQconninfoParse(url, NULL);

    *hosts = (struct hosts){NULL, 0, 0};
    if (options == NULL)
        return;
    const char *const lists[HOST_PARTS] = {[HOST_NAME] = said(options, "host"),
                                           [HOST_ADDRESS] = said(options, "hostaddr"),
                                           [HOST_PORT] = said(options, "port")};
    if (said(options, "service") == NULL)
        read_lists(lists, attempt, hosts);
    PQconninfoFree(options);
}

void hosts_free(struct hosts *hosts)
{
    for (size_t i = 0; i < hosts->count; i++)
        for (size_t part = 0; part < HOST_PARTS; part++)
            mem_free(hosts->items[i].part[part]);
    mem_free(hosts->items);
    *hosts = (struct hosts){NULL, 0, 0};
}

/* ---- names and their addresses ---- */

static bool is_said(const char *text)
{
    return text != NULL && text[0] != '\0';
}

static bool is_address(const char *text)
{
    struct in6_addr ignored;

    return inet_pton(AF_INET, text, &ignored) == 1 || inet_pton(AF_INET6, text, &ignored) == 1;
}

const char *host_name_to_find(const struct host *host)
{
    const char *name = host->part[HOST_NAME];

    if (is_said(host->part[HOST_ADDRESS]) || !is_said(name))
        return NULL;
    return name[0] == '/' || name[0] == '@' || is_address(name) ? NULL : name;
}

bool hosts_have_names(const struct hosts *hosts)
{
    for (size_t i = 0; i < hosts->count; i++)
        if (host_name_to_find(&hosts->items[i]) != NULL)
            return true;
    return false;
}

void addresses_add(struct addresses *addresses, const char *text)
{
    size_t len = strlen(text);

    for (size_t i = 0; i < addresses->count; i++)
        if (strcmp(addresses->text[i], text) == 0)
            return;
    if (addresses->count < ADDRESSES_PER_NAME_MAX && len < ADDRESS_TEXT_MAX)
        memcpy(addresses->text[addresses->count++], text, len + 1);
}

static int compare_texts(const void *a, const void *b)
{
    return strcmp(a, b);
}

static void add_with_address(struct hosts *hosts, const struct host *host, const char *address)
{
    struct host *added = NULL;

    hosts->items = mem_realloc(hosts->items, (hosts->count + 1) * sizeof hosts->items[0]);
    added = &hosts->items[hosts->count++];
    for (size_t part = 0; part < HOST_PARTS; part++) {
        const char *text = part == HOST_ADDRESS ? address : host->part[part];
        added->part[part] = text != NULL ? text_copy(text, strlen(text)) : NULL;
    }
}

void hosts_add(struct hosts *hosts, const struct host *host)
{
    add_with_address(hosts, host, host->part[HOST_ADDRESS]);
}

void hosts_add_found(struct hosts *hosts, const struct host *host, const struct addresses *found)
{
    struct addresses ordered = *found;

    if (hosts->round > 0)
        qsort(ordered.text, ordered.count, sizeof ordered.text[0], compare_texts);
    for (size_t i = 0; i < ordered.count; i++)
        add_with_address(hosts, host, ordered.text[(hosts->round + i) % ordered.count]);
}

/* ---- for libpq ---- */

char *hosts_list(const struct hosts *hosts, enum host_part part)
{
    size_t len = 0;
    bool any = false;

    for (size_t i = 0; i < hosts->count; i++) {
        any = any || hosts->items[i].part[part] != NULL;
        len += 1 + (hosts->items[i].part[part] != NULL ? strlen(hosts->items[i].part[part]) : 0);
    }
    if (!any)
        return NULL;
    char *list = mem_alloc(len);
    char *at = list;
    for (size_t i = 0; i < hosts->count; i++) {
        const char *text = hosts->items[i].part[part];
        if (text != NULL)
            at = stpcpy(at, text);
        *at++ = i + 1 < hosts->count ? ',' : '\0';
    }
    return list;
}
