/* conf_help: the table of settings for people: `serve --help`, and docs/configuration.md. */
#include <string.h>

#include "base/conf_table.h"

static void print_values(FILE *out, const struct conf_row *row)
{
    switch (row->kind) {
    case CONF_KIND_TEXT: fprintf(out, "up to %u bytes", row->max); return;
    case CONF_KIND_U32: fprintf(out, "%u to %u %s", row->min, row->max, row->unit); return;
    case CONF_KIND_CHOICE:
        for (const char *at = row->choices; *at != '\0'; at++)
            if (*at == '|')
                fputs(", ", out);
            else
                fputc(*at, out);
        return;
    case CONF_KIND_SWITCH: fputs("yes, no", out); return;
    }
}

static void print_default(FILE *out, const struct conf_row *row)
{
    size_t len = 0;

    switch (row->kind) {
    case CONF_KIND_TEXT:
        fputs(row->text_preset[0] != '\0' ? row->text_preset : "none", out);
        return;
    case CONF_KIND_U32: fprintf(out, "%u", row->preset); return;
    case CONF_KIND_CHOICE: {
        const char *choice = conf_choice(row, row->preset, &len);
        fprintf(out, "%.*s", (int)len, choice);
        return;
    }
    case CONF_KIND_SWITCH: fputs("no", out); return;
    }
}

void conf_print_help(FILE *out)
{
    for (size_t i = 0; i < CONF_COUNT; i++) {
        const struct conf_row *row = &conf_rows[i];
        fprintf(out, "  --%s%s", row->flag, row->kind == CONF_KIND_SWITCH ? "" : " VALUE");
        fprintf(out, "  (%s", row->environment);
        if (row->trait != CONF_NOT_IN_FILE)
            fprintf(out, "; file: %s", row->name);
        fprintf(out, ")\n      %s\n      ", row->help);
        print_values(out, row);
        fputs("; default ", out);
        print_default(out, row);
        fputs(row->reload == CONF_RELOAD ? "; SIGHUP reloads it\n" : "\n", out);
    }
}

static void print_row(FILE *out, const struct conf_row *row)
{
    if (row->trait == CONF_NOT_IN_FILE)
        fputs("| (not in the file)", out);
    else
        fprintf(out, "| `%s`", row->name);
    fprintf(out, " | `--%s` | `%s` | ", row->flag, row->environment);
    print_values(out, row);
    fputs(" | ", out);
    print_default(out, row);
    fprintf(out, " | %s | %s |\n", row->reload == CONF_RELOAD ? "yes" : "no", row->help);
}

void conf_print_reference(FILE *out)
{
    fputs(
        "# Configuration\n\n"
        "Every setting of `awa-proxy serve`. This page is made from the table in the program"
        " (`./dev docs`); do not edit it.\n\n"
        "A setting is a flag, an environment variable, or a line of the configuration file"
        " (`--config PATH` or `AWA_CONFIG`).\nThe flag is stronger than the environment, that is"
        " stronger than the file, and that is stronger than the default. An empty\nvariable counts"
        " as not set. A value that is not among those below stops the start, also where a stronger "
        "source"
        " hides it.\n\n"
        "The file has lines of `name = value`. A `#` at the beginning of a line or behind a blank"
        " begins a comment. Values are not\nquoted. An unknown name and a name that stands twice"
        " are errors. `include = path` puts the lines of another file in its\nplace, looked for"
        " beside this one: for what is kept elsewhere, a secret say. That file includes nothing"
        " itself.\n```\n"
        "# /etc/awa-proxy.conf\n"
        "include = secrets/awa-database.conf   # database_url = postgresql://…\n"
        "listen = unix:/run/awa-proxy/awa.sock, tcp:127.0.0.1:7433\n"
        "poll_max_ms = 100\n```\n"
        "A switch (yes, no) needs no value as a flag. `--listen` may be given several times."
        " A variable of the environment that is not in\nthe table is not looked at: "
        "`--check-config`"
        " shows whether a value comes from where you put it.\n\n"
        "`awa-proxy serve --check-config` judges all settings (it opens no socket and asks no"
        " database), prints each in effect with its\norigin, without any password, and exits: 0"
        " good, 2 not. SIGHUP reads the file again: see [operations.md](operations.md).\n\n"
        "| name in the file | flag | environment | values | default | SIGHUP reloads it | meaning"
        " |\n|---|---|---|---|---|---|---|\n",
        out);
    for (size_t i = 0; i < CONF_COUNT; i++)
        print_row(out, &conf_rows[i]);
}
