/* cmd: the subcommands of awa-proxy: each cmd_<name>.c holds one ("queue counts" is
 * cmd_queue_counts.c), main.c dispatches. argv[0] is the last word of the subcommand's name. The
 * result is the exit code of the process: 0 done, 1 failed, 2 used wrongly. */
#ifndef APP_CMD_H
#define APP_CMD_H

enum cmd_exit {
    CMD_DONE = 0,
    CMD_FAILED = 1,
    CMD_MISUSED = 2,
};

int cmd_migrate(int argc, char **argv);
int cmd_serve(int argc, char **argv);
int cmd_status(int argc, char **argv);
int cmd_queue_counts(int argc, char **argv);
int cmd_job_get(int argc, char **argv);

#endif
