/* main: finds the subcommand in a table and runs it. Everything else, options included, is the
 * subcommand's. */
#include <fcntl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "app/cmd.h"

struct command {
    const char *name;
    const char *verb; /* its second word, or NULL */
    int (*run)(int argc, char **argv);
    const char *summary;
};

static const struct command commands[] = {
    {"serve", NULL, cmd_serve, "be the daemon that clients connect to"},
    {"migrate", NULL, cmd_migrate, "bring the database schema to this binary's version"},
    {"status", NULL, cmd_status, "what the schema holds as a whole"},
    {"queue", "counts", cmd_queue_counts, "how many jobs in which state"},
    {"job", "get", cmd_job_get, "one job, its state and its body"},
};
static const size_t command_count = sizeof commands / sizeof commands[0];

static void print_usage(FILE *out)
{
    char name[32];

    fputs("usage: awa-proxy COMMAND [options]\n\n", out);
    for (size_t i = 0; i < command_count; i++) {
        const struct command *command = &commands[i];
        snprintf(name, sizeof name, "%s %s", command->name,
                 command->verb != NULL ? command->verb : "");
        fprintf(out, "  %-14s%s\n", name, command->summary);
    }
    fputs("\n`awa-proxy COMMAND --help` describes its options, `awa-proxy --version` says which"
          " this is.\n",
          out);
}

/* The command of these words; *used is how many they are. NULL when there is none. */
static const struct command *find_command(int argc, char **argv, int *used)
{
    for (size_t i = 0; i < command_count; i++) {
        const struct command *command = &commands[i];
        *used = command->verb != NULL ? 2 : 1;
        if (argc > *used && strcmp(argv[1], command->name) == 0 &&
            (command->verb == NULL || strcmp(argv[2], command->verb) == 0))
            return command;
    }
    return NULL;
}

static bool asks_for_help(const char *word)
{
    return strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0 || strcmp(word, "help") == 0;
}

static bool is_first_word(const char *word)
{
    for (size_t i = 0; i < command_count; i++)
        if (strcmp(word, commands[i].name) == 0)
            return true;
    return false;
}

/* Of what follows, only a word where one belongs is shown: it may hold a password. */
static void complain(int argc, char **argv)
{
    if (!is_first_word(argv[1]))
        fprintf(stderr, "awa-proxy: no command \"%.40s\"\n", argv[1]);
    else if (argc > 2)
        fprintf(stderr, "awa-proxy %s: no command \"%.40s\"\n", argv[1], argv[2]);
    else
        fprintf(stderr, "awa-proxy %s: needs a second word\n", argv[1]);
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

/* What was printed and is lost is a failure too, now or when a full buffer was written. */
static int finish(int status)
{
    bool lost = fflush(stdout) != 0 || ferror(stdout);
    return lost && status == CMD_DONE ? CMD_FAILED : status;
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "";
    int used = 0;

    open_standard_files();
    const struct command *command = find_command(argc, argv, &used);
    if (command != NULL)
        return finish(command->run(argc - used, argv + used));
    if (strcmp(name, "--version") == 0) {
        puts("awa-proxy " AWA_VERSION);
        return finish(CMD_DONE);
    }
    if (asks_for_help(name) || (argc > 2 && is_first_word(name) && asks_for_help(argv[2]))) {
        print_usage(stdout);
        return finish(CMD_DONE);
    }
    if (*name != '\0')
        complain(argc, argv);
    print_usage(stderr);
    return CMD_MISUSED;
}
