/* main: `awa-sim`, plays seeds, each in a process of its own, two at a time.
 *
 * Why processes: core checks its invariants with CHECK, which aborts, and one seed's crash must not
 * end the others. A seed that fails prints what is wrong and the one command that shows it again.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "sim.h"

enum { PROCESSES_MAX = 16, SECONDS_PER_SEED_MAX = 120, TURNS = 400, CRASHED = 9 };

struct options {
    struct sim_options sim;
    uint64_t seeds;
    unsigned processes;
    bool stop_early;
};

struct player {
    pid_t pid; /* 0: free */
    uint64_t seed;
};

struct game {
    struct options options;
    struct player players[PROCESSES_MAX];
    uint64_t passed;
    uint64_t failed;
};

static void play(const struct options *options, uint64_t seed)
{
    struct sim_options sim = options->sim;

    sim.seed = seed;
    log_set_level(options->sim.trace ? LOG_INFO : LOG_ERROR);
    alarm(SECONDS_PER_SEED_MAX);
    sim_play(&sim);
    fflush(stdout);
    exit(0); /* and let the leak checker look */
}

static void start(struct game *game, struct player *player, uint64_t seed)
{
    fflush(stdout);
    player->seed = seed;
    player->pid = fork();
    if (player->pid == 0)
        play(&game->options, seed);
    if (player->pid < 0) {
        fprintf(stderr, "awa-sim: cannot fork: %s\n", strerror(errno));
        exit(2);
    }
}

static void judge(struct game *game, const struct player *player, int status)
{
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
        game->passed++;
        return;
    }
    game->failed++;
    if (WIFSIGNALED(status))
        printf("seed %llu: ended by signal %d (%s)\n", (unsigned long long)player->seed,
               WTERMSIG(status), strsignal(WTERMSIG(status)));
    printf("seed %llu failed; see it again: tests/sim/run --seeds 1 --from %llu --events %u "
           "--trace\n",
           (unsigned long long)player->seed, (unsigned long long)player->seed,
           game->options.sim.turns);
}

/* Waits for one to end; false when none is playing. */
static bool wait_for_one(struct game *game)
{
    int status;
    pid_t pid = wait(&status);

    if (pid < 0)
        return false;
    for (size_t i = 0; i < PROCESSES_MAX; i++) {
        struct player *player = &game->players[i];
        if (player->pid != pid)
            continue;
        player->pid = 0;
        judge(game, player, status);
    }
    return true;
}

static struct player *free_player(struct game *game)
{
    for (;;) {
        for (size_t i = 0; i < game->options.processes; i++)
            if (game->players[i].pid == 0)
                return &game->players[i];
        wait_for_one(game);
    }
}

static int play_all(struct game *game)
{
    for (uint64_t i = 0; i < game->options.seeds; i++) {
        struct player *player = free_player(game);
        if (game->options.stop_early && game->failed > 0)
            break;
        start(game, player, game->options.sim.seed + i);
    }
    while (wait_for_one(game))
        ;
    printf("%llu passed, %llu failed\n", (unsigned long long)game->passed,
           (unsigned long long)game->failed);
    return game->failed > 0 || game->passed == 0 ? 1 : 0;
}

static void usage(FILE *out)
{
    fprintf(out,
            "usage: awa-sim [--seeds N] [--from S] [--events M] [--jobs P] [--first] [--trace]\n\n"
            "Plays N seeds from S on, each for M turns of the loop and then to its end, P at a\n"
            "time. --first stops at the first that fails. --trace prints every event.\n");
}

static uint64_t number(const char *option, const char *text)
{
    char *end = NULL;
    uint64_t value = 0;

    errno = 0;
    if (text != NULL)
        value = strtoull(text, &end, 10);
    if (text == NULL || end == text || *end != '\0' || errno != 0) {
        fprintf(stderr, "awa-sim: %s needs a number\n", option);
        exit(2);
    }
    return value;
}

/* Returns how many words the option takes. */
static int read_option(struct options *options, const char *option, const char *value)
{
    if (strcmp(option, "--trace") == 0) {
        options->sim.trace = true;
        return 1;
    }
    if (strcmp(option, "--first") == 0) {
        options->stop_early = true;
        return 1;
    }
    if (strcmp(option, "--seeds") == 0) {
        options->seeds = number(option, value);
    } else if (strcmp(option, "--from") == 0) {
        options->sim.seed = number(option, value);
    } else if (strcmp(option, "--events") == 0) {
        options->sim.turns = (unsigned)number(option, value);
    } else if (strcmp(option, "--jobs") == 0) {
        options->processes = (unsigned)number(option, value);
    } else {
        usage(stderr);
        exit(2);
    }
    return 2;
}

int main(int argc, char **argv)
{
    static struct game game;

    game.options =
        (struct options){.sim = {.seed = 1, .turns = TURNS}, .seeds = 100, .processes = 2};
    for (int i = 1; i < argc;) {
        if (strcmp(argv[i], "--help") == 0) {
            usage(stdout);
            return 0;
        }
        i += read_option(&game.options, argv[i], i + 1 < argc ? argv[i + 1] : NULL);
    }
    if (game.options.processes < 1 || game.options.processes > PROCESSES_MAX) {
        fprintf(stderr, "awa-sim: --jobs is 1 to %d\n", PROCESSES_MAX);
        return 2;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    return play_all(&game);
}
