/* settings: see settings.h. */
#include "app/settings.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "pg/url.h"

static const char blanks[] = " \t";

/* ---- judging ---- */

static enum code add_address(struct settings *settings, const char *text, size_t len,
                             struct err *err)
{
    char one[sizeof settings->conf.listen];

    if (settings->listen_count == LISTENERS_MAX)
        return err_set(err, CODE_INVALID_ARGUMENT, "listen: more than %d addresses", LISTENERS_MAX);
    memcpy(one, text, len);
    one[len] = '\0';
    struct address *address = &settings->listen[settings->listen_count++];
    enum code code = address_parse(address, one, err);
    if (code == CODE_OK && !address_is_private(address) && !settings->conf.insecure)
        code = err_set(err, CODE_INVALID_ARGUMENT,
                       "%.100s can be reached from other machines, and nothing is encrypted or"
                       " authenticated: refused without --insecure",
                       one);
    return code;
}

static enum code parse_listen(struct settings *settings, struct err *err)
{
    enum code code = CODE_OK;
    const char *at = settings->conf.listen;

    settings->listen_count = 0;
    do {
        at += strspn(at, blanks);
        size_t len = strcspn(at, ",");
        const char *next = at + len + (at[len] == ',');
        while (len > 0 && strchr(blanks, at[len - 1]) != NULL)
            len--;
        code = add_address(settings, at, len, err);
        at = next;
    } while (code == CODE_OK && *at != '\0');
    return code;
}

/* Puts in front of a complaint where the setting came from, if both fit. */
static enum code blame(const struct conf *conf, enum conf_id id, struct err *err)
{
    char room[CONF_VALUE_BYTES];
    const char *origin = conf_origin(conf, id, room);
    struct err cause = *err;

    if (strlen(origin) + strlen(": ") + strlen(cause.message) >= sizeof err->message)
        return cause.code;
    return err_set(err, cause.code, "%s: %s", origin, cause.message);
}

enum code settings_load(struct settings *settings, int argc, char **argv, struct err *err)
{
    settings->argc = argc;
    settings->argv = argv;
    enum code code = conf_load(&settings->conf, argc, argv, getenv, err);
    if (code == CODE_OK && settings->conf.database_url[0] == '\0')
        code = err_set(err, CODE_INVALID_ARGUMENT,
                       "no database: set AWA_DATABASE_URL, --database, or database_url in the"
                       " file");
    if (code == CODE_OK && url_check(settings->conf.database_url, err) != CODE_OK)
        code = blame(&settings->conf, CONF_ID_database_url, err);
    if (code == CODE_OK && settings->conf.schema[0] == '\0')
        code = err_set(err, CODE_INVALID_ARGUMENT, "schema: must not be empty");
    if (code == CODE_OK && parse_listen(settings, err) != CODE_OK)
        code = blame(&settings->conf, CONF_ID_listen, err);
    return code;
}

/* ---- showing ---- */

void settings_print(const struct settings *settings, FILE *out)
{
    char value[CONF_VALUE_BYTES], origin[CONF_VALUE_BYTES], url[CONF_VALUE_BYTES];

    for (enum conf_id id = 0; id < CONF_COUNT; id++) {
        const char *shown = conf_value(&settings->conf, id, value);
        if (id == CONF_ID_database_url)
            shown = url_text(settings->conf.database_url, url, sizeof url);
        fprintf(out, "%s = %s  # %s\n", conf_name(id), shown,
                conf_origin(&settings->conf, id, origin));
    }
}

/* ---- again ---- */

static void log_adopted(const struct conf *running, const struct conf *fresh, enum conf_id id)
{
    char before[CONF_VALUE_BYTES], after[CONF_VALUE_BYTES];

    log_event(LOG_INFO, "setting_changed", "setting=%s from=%s to=%s", conf_name(id),
              conf_value(running, id, before), conf_value(fresh, id, after));
}

/* Said under the more talkative of the two log levels. */
static void adopt(struct settings *running, const struct conf *fresh)
{
    unsigned changed = 0;
    unsigned waiting = 0;

    if (fresh->log_level < running->conf.log_level)
        log_set_level((enum log_level)fresh->log_level);
    for (enum conf_id id = 0; id < CONF_COUNT; id++) {
        if (!conf_differs(&running->conf, fresh, id))
            continue;
        if (conf_is_reloadable(id)) {
            log_adopted(&running->conf, fresh, id);
            conf_adopt(&running->conf, fresh, id);
            changed++;
        } else {
            log_event(LOG_WARN, "setting_needs_restart", "setting=%s", conf_name(id));
            waiting++;
        }
    }
    log_event(LOG_INFO, "settings_reloaded", "changed=%u need_restart=%u", changed, waiting);
    log_set_level((enum log_level)running->conf.log_level);
}

bool settings_reload(struct settings *running)
{
    struct settings *fresh = mem_zalloc(sizeof *fresh);
    struct err err;
    enum code code = settings_load(fresh, running->argc, running->argv, &err);

    if (code == CODE_OK) {
        adopt(running, &fresh->conf);
    } else {
        char text[ERR_MESSAGE_BYTES];
        log_event(LOG_ERROR, "settings_refused", "reason=\"%s\"",
                  log_text(text, sizeof text, err.message));
    }
    mem_free(fresh);
    return code == CODE_OK;
}
