/* Entry point: finds the subcommand in a table and runs it. Everything else,
 * options included, is the subcommand's. */
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "app/cmd.h"

struct command {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *summary;
};

static const struct command commands[] = {
    {"serve", cmd_serve, "be the daemon that clients connect to"},
    {"migrate", cmd_migrate, "bring the database schema to this binary's version"},
};
static const size_t command_count = sizeof commands / sizeof commands[0];

static void print_usage(FILE *out)
{
    fputs("usage: awa-proxy COMMAND [options]\n\n", out);
    for (size_t i = 0; i < command_count; i++)
        fprintf(out, "  %-10s %s\n", commands[i].name, commands[i].summary);
    fputs("\n`awa-proxy COMMAND --help` describes its options.\n", out);
}

/* A standard descriptor that is closed would be given to the next socket, and what is meant for
 * stderr written to Postgres. */
static void open_standard_files(void)
{
    int fd = open("/dev/null", O_RDWR);

    while (fd >= 0 && fd <= STDERR_FILENO)
        fd = open("/dev/null", O_RDWR);
    if (fd > STDERR_FILENO)
        close(fd);
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "";

    open_standard_files();
    for (size_t i = 0; i < command_count; i++) {
        if (strcmp(name, commands[i].name) == 0)
            return commands[i].run(argc - 1, argv + 1);
    }
    if (strcmp(name, "--version") == 0) {
        puts("awa-proxy " AWA_VERSION);
        return CMD_DONE;
    }
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "help") == 0) {
        print_usage(stdout);
        return CMD_DONE;
    }
    if (*name != '\0')
        fprintf(stderr, "awa-proxy: no command \"%s\"\n", name);
    print_usage(stderr);
    return CMD_MISUSED;
}
